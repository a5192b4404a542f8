#!/usr/bin/env bash
# run.sh PG_CONFIG [--build]: makes the archive for PGXN and does with it what PGXN's client does, in a copy of the private
# server that PG_CONFIG belongs to. That server has the extension, and its library is what the build gives in the place of
# a new one; with --build the archive is compiled. One line a test.
# shellcheck disable=SC2317 # the functions are called through check
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/../../scripts/server.sh"

work=$(mktemp -d "$(private_dir)/pgxn.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
version=$(server_version "$1")
library=$("$1" --pkglibdir)/idempotence.so
copy=$work/copy
cp -a "$(private_dir)/pg$version" "$copy"
pg_config=$copy${1#"$(private_dir)/pg$version"}
make -s -C "$root" uninstall PG_CONFIG="$pg_config"

export PROFILE=dev ARGS=regress
if [ "${2:-}" != --build ]; then
    mkdir "$work/programs"
    cat >"$work/programs/cargo" <<STUB
#!/bin/sh
set -e
[ "\$1" = build ] || exec "$(command -v cargo)" "\$@"
"$(command -v cargo)" metadata --locked --format-version 1 >/dev/null
mkdir -p "\$CARGO_TARGET_DIR/debug"
cp "$library" "\$CARGO_TARGET_DIR/debug/libidempotence.so"
STUB
    chmod 755 "$work/programs/cargo"
    PATH=$work/programs:$PATH
fi

if command -v pgxn >/dev/null; then
    pgxn() { command pgxn "$@"; }
else
    unpacked=$("$root/scripts/unpacked.sh" pgxnclient)
    pgxn() { PYTHONPATH=$unpacked/usr/lib/python3/dist-packages /usr/bin/python3 "$unpacked/usr/bin/pgxn" "$@"; }
fi

failed=0
# check NAME COMMAND...
check() {
    local name=$1
    shift
    # Not where a condition is looked at: there, bash would go on behind a command that fails.
    (
        trap server_remove EXIT
        "$@"
    ) >"$work/said" 2>&1 &
    if wait $!; then
        echo "ok $name"
    else
        echo "not ok $name"
        cat "$work/said"
        failed=1
    fi
}

archive=$root/$("$root/scripts/pgxn.sh" | tail -n 1)
server=(--pg_config "$pg_config" --yes)

installs() {
    [ ! -e "$("$pg_config" --pkglibdir)/idempotence.so" ]
    pgxn install "${server[@]}" "$archive"
    [ -e "$("$pg_config" --pkglibdir)/idempotence.so" ]
}

# With the test programs of that server, and as the user that pgxn hands over.
passes() {
    server_start "$pg_config" 'fsync = off' 'autovacuum = off'
    pgxn check "${server[@]}" --host "$PGHOST" --port "$PGPORT" --username "$PGUSER" "$archive"
}

loads() {
    server_start "$pg_config" 'fsync = off'
    pgxn load "${server[@]}" --host "$PGHOST" --port "$PGPORT" --username "$PGUSER" --dbname postgres "$archive"
    [ "$("$server_bin/psql" -XAtc 'SELECT count(*) FROM idempotence.sessions')" = 0 ]
}

uninstalls() {
    pgxn uninstall "${server[@]}" "$archive"
    [ -z "$(find "$copy" -type f -name '*idempotence*')" ]
}

check 'pgxn install' installs
check 'pgxn load' loads
check 'pgxn check' passes
check 'pgxn uninstall' uninstalls
exit $failed
