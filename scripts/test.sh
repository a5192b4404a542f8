#!/usr/bin/env bash
# The whole suite, set-up included: lints, unit tests; on PostgreSQL 15 and on 18 with assertions
# the golden SQL, the isolation specs, the drivers' examples and a look into the server's log; what
# needs whole clusters; the demo. Output goes to target/test; here one line a suite, and a table.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/server.sh"

cd "$root"
unset PG_CONFIG # PG15_CONFIG and PG18_CONFIG name the servers here
logs=$root/target/test
rm -rf "$logs"
mkdir -p "$logs"

passed=0 failed=0 table=()

# The last line counts, also where the run ends before its time.
finish() {
    local status=$?
    server_remove
    [ "$status" -eq 0 ] || failed=$((failed + 1))
    if [ ${#table[@]} -gt 0 ]; then
        printf '\n%-24s %7s %7s %8s\n' suite passed failed seconds
        printf '%s\n' "${table[@]}"
    fi
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ] || exit 1
}
trap finish EXIT

# suite NAME COUNTER COMMAND...: the counter reads the output and prints two numbers, passed and
# failed. A suite that fails without a failed test, or runs none at all, is a failed test itself.
suite() {
    local name=$1 counter=$2 log=$logs/${1// /-}.log start=$SECONDS status=0 ok bad row
    shift 2
    "$@" >"$log" 2>&1 </dev/null || status=$?
    read -r ok bad < <("$counter" <"$log")
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$ok" -eq 0 ]; }; then
        bad=1
    fi
    passed=$((passed + ok)) failed=$((failed + bad))
    printf -v row '%-24s %7d %7d %8d' "$name" "$ok" "$bad" $((SECONDS - start))
    table+=("$row")
    echo "$row"
    if [ "$bad" -gt 0 ]; then
        tail -n 200 "$log"
        echo "(all of it: $log)"
    fi
}

count_checks() { awk '/^ok / { ok++ } /^not ok / { bad++ } END { print ok + 0, bad + 0 }'; }
count_cargo() { awk '/^test result:/ { ok += $4; bad += $6 } END { print ok + 0, bad + 0 }'; }
# "All 7 tests passed." or "2 of 7 tests failed."
count_regress() {
    sed -nE -e 's/.*All ([0-9]+) tests passed.*/0 \1/p' \
        -e 's/^[# ]*([0-9]+) of ([0-9]+) tests failed.*/\1 \2/p' |
        awk '{ bad += $1; ok += $2 - $1 } END { print ok + 0, bad + 0 }'
}

unit_tests() (
    export CARGO_TARGET_DIR=$root/target/check PGRX_PG_CONFIG_PATH=$pg15_config
    feature=pg$(major_version "$pg15_config")
    status=0
    cargo test --locked --no-fail-fast -p idempotence --no-default-features --features "$feature" ||
        status=1
    cargo test --locked --no-fail-fast --workspace \
        --exclude idempotence --exclude idempotence-cluster-tests || status=1
    exit $status
)

# What a server must never have said, whatever it was asked.
never='TRAP:|PANIC:|WARNING:.*(leak|not closed|still referenced)|terminated by signal'
check_server_log() {
    if grep -E "$never" "$1"; then
        echo "not ok $1"
        return 1
    fi
    echo "ok $1"
}

cluster_tests() {
    # Each test has servers of its own, and the machine perhaps two cores.
    export RUST_TEST_THREADS=2
    IDEM_PG15_CONFIG=$1 IDEM_PG18_CONFIG=$2 timeout 1200 \
        cargo test --locked --no-fail-fast -p idempotence-cluster-tests
}

demo() {
    PG_CONFIG=$pg15_config scripts/demo.sh --quick && echo "ok demo"
}

# The drivers' examples, in a database of their own; PGPORT is in the environment.
snippets() {
    "$server_bin/createdb" snippets &&
        timeout 600 tests/snippets/run.sh "postgresql:///snippets?host=$PGHOST&user=$PGUSER"
}

# on_server NAME PG_CONFIG: what one server is enough for, on a fresh private one.
on_server() {
    local name=$1 pg_config=$2
    server_start "$pg_config" 'fsync = off'
    suite "$name golden SQL" count_regress timeout 600 scripts/installcheck.sh "$pg_config" regress
    suite "$name isolation" count_regress timeout 600 scripts/installcheck.sh "$pg_config" isolation
    suite "$name snippets" count_checks snippets
    server_stop
    cp "$server_log" "$logs/$name-server.log"
    server_remove
    suite "$name server log" count_checks check_server_log "$logs/$name-server.log"
}

scripts/setup.sh test
pg18_config=${PG18_CONFIG:-$(scripts/pg18.sh)}

suite 'lints' count_checks scripts/lint.sh "$pg15_config" "$pg18_config"
suite 'unit tests' count_cargo unit_tests

# The debug build on the server with assertions: it has those of Rust, and overflow checks.
private15=$(scripts/installation.sh "$pg15_config")
private18=$(scripts/installation.sh "$pg18_config" dev)
on_server pg15 "$private15"
on_server pg18 "$private18"
suite 'clusters' count_cargo cluster_tests "$private15" "$private18"
suite 'demo' count_checks demo
