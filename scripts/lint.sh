#!/usr/bin/env bash
# lint.sh PG_CONFIG...: checks the sources without running them. Warnings are errors. The extension is checked
# for each server named. Prints one line for each check.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
# All servers are looked at before the first check, which takes long.
versions=()
for pg_config in "$@"; do
    versions+=("$(server_version "$pg_config")")
done
export RUSTDOCFLAGS='-D warnings'

failed=0
check() {
    local name=$1
    shift
    if quietly "$@"; then
        echo "ok $name"
    else
        echo "not ok $name"
        failed=1
    fi
}

check 'formatting' cargo fmt --all --check
check 'no circle of imports' scripts/check_modules.py src/lib.rs demo/src/lib.rs bench/src/main.rs tests/cluster/src/lib.rs
check 'links true' scripts/check_links.py
check 'clippy, members' \
    cargo clippy --locked --workspace --exclude idempotence --all-targets -- -D warnings
check 'rustdoc, members' \
    cargo doc --locked --workspace --exclude idempotence --no-deps --document-private-items

for version in "${versions[@]}"; do
    pg_config=$1
    shift
    PGRX_PG_CONFIG_PATH=$(command -v "$pg_config")
    export PGRX_PG_CONFIG_PATH
    extension=(--locked -p idempotence --no-default-features --features "pg$version")
    check "clippy, extension for $version" \
        cargo clippy "${extension[@]}" --all-targets -- -D warnings
    check "rustdoc, extension for $version" \
        cargo doc "${extension[@]}" --no-deps --document-private-items
done
check 'script of CREATE EXTENSION' scripts/schema.sh --check "$pg_config"
check 'shellcheck' shellcheck -x -P "$root" scripts/*.sh bench/*.sh tests/*/*.sh clients/tests/*.sh clients/*/tests/*.sh clients/roundtrips/*.sh monitoring/check_idempotence .ci/run
check 'SQL qualified' scripts/check_sql.py
check 'golden tests complete' scripts/check_tests.sh
check 'pages true' scripts/check_docs.sh
check 'tables of roles true' scripts/roles.sh --check
check 'META.json true' scripts/check_meta.py
check 'licences of what is linked in' scripts/third_party.py --check
exit $failed
