#!/usr/bin/env bash
# test_one.sh NAME [ARGUMENT...]: runs one test on PG_CONFIG's server (default: Debian's PostgreSQL 15), after building the
# extension for it with cargo's dev profile. NAME is one of these:
#
#   payload       a golden test, tests/pg_regress/sql/payload.sql, and the isolation spec of that name, if there is one
#   crash::       a file of cluster tests, tests/cluster/tests/crash.rs, or with crash::NAME some of its tests
#   decision      otherwise the unit tests of the extension whose names contain NAME
#
# The arguments are passed to the test program of cargo, for example --ignored or --nocapture.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
cd "$root"
[ $# -gt 0 ] || die "name a test: make test-one NAME=payload, NAME=crash:: or NAME=decision"
name=$1
shift

pg_config=${PG_CONFIG:-$pg15_config}
[ -n "$(command -v "$pg_config")" ] || scripts/setup.sh
version=$(server_version "$pg_config")
results=$root/target/test-one

# Golden tests that continue what the tests before them in the schedule have left: they run after all of these.
continuing=' sweep savepoints client_steps additions '
# Isolation specs of which the same is true.
continuing_specs=' forget '

# before NAME INPUTDIR: the tests of the schedule that come before this one.
before() { sed -n 's/^test: *//p' "$2/schedule" | tr -s ' ' '\n' | sed "/^$1\$/,\$d"; }

# regress PROGRAM INPUTDIR DATABASE ARGUMENT...: runs PostgreSQL's test program.
regress() {
    local program=$1 input=$2 database=$3
    shift 3
    rm -rf "$results"
    mkdir -p "$results"
    "$(dirname "$("$private" --pgxs)")/../test/$program" --inputdir="$root/tests/$input" --outputdir="$results" \
        --bindir="$("$private" --bindir)" --dbname="$database" "$@" && return
    [ ! -s "$results/regression.diffs" ] || cat "$results/regression.diffs"
    echo "the output is in $results/results; if it is right now, copy it to tests/$input/expected" >&2
    return 1
}

golden() {
    local tests=(setup)
    [[ $continuing != *" $name "* ]] || mapfile -t tests < <(before "$name" tests/pg_regress)
    [[ $name == @(setup|teardown) ]] || tests+=("$name")
    regress regress/pg_regress pg_regress contrib_regression "${tests[@]}" teardown
}

spec() {
    local tests=()
    [[ $continuing_specs != *" $name "* ]] || mapfile -t tests < <(before "$name" tests/isolation)
    regress isolation/pg_isolation_regress isolation isolation_regression --load-extension=idempotence \
        "${tests[@]}" "$name"
}

on_server() {
    trap server_remove EXIT
    # The specs and some golden tests execute the steps of the sweep one by one; a run of the worker would disturb them.
    server_start "$private" 'fsync = off' 'autovacuum = off' "shared_preload_libraries = 'idempotence'"
    [ ! -e "tests/pg_regress/sql/$name.sql" ] || golden
    if [ -e "tests/isolation/specs/$name.spec" ]; then
        as_server_user "$server_bin/psql" -Xqc "ALTER SYSTEM SET idempotence.naptime = '1d'" \
            -c 'SELECT pg_reload_conf()' >/dev/null
        spec
    fi
}

# rust_tests PATTERN COMMAND...: runs the tests of a `cargo test` whose names match.
rust_tests() {
    local pattern=$1 listed tests
    shift
    listed=$("$@" -- --list --format terse "${skipped[@]}") || die "the tests do not compile"
    mapfile -t tests < <(sed -n 's/: test$//p' <<<"$listed" | grep -E "$pattern")
    [ ${#tests[@]} -gt 0 ] ||
        die "no golden test, no isolation spec, no cluster test and no unit test has the name $name"
    "$@" -- --exact "${tests[@]}" "${arguments[@]}"
}

choose_rust
skipped=() arguments=("$@")
if [ -e "tests/pg_regress/sql/$name.sql" ] || [ -e "tests/isolation/specs/$name.spec" ]; then
    private=$(scripts/installation.sh "$pg_config" dev)
    on_server
elif [ -e "tests/cluster/tests/${name%%::*}.rs" ]; then
    private=$(scripts/installation.sh "$pg_config" dev)
    # Tests are named FILE::NAME::pg15, FILE::NAME::pg18 and so on; a test that needs no server of a version has no such end.
    for other in 15 16 17 18 19; do
        [ "$other" = "$version" ] || skipped+=(--skip "::pg$other")
    done
    export "IDEM_PG${version}_CONFIG=$private"
    rust_tests "^$name" cargo test --locked -p idempotence-cluster-tests --test all
else
    PGRX_PG_CONFIG_PATH=$(own_pg_config "$pg_config")
    export PGRX_PG_CONFIG_PATH
    rust_tests "$name" cargo test "${rust_options[@]}" --locked -p idempotence --lib --no-default-features \
        --features "pg$version"
fi
