# Sourced by test.sh and test_all.sh: runs suites, counts their tests, and prints the totals at the end. Each suite's
# output goes to target/test, or to the directory IDEM_LOGS. private[VERSION] is the pg_config of the
# private copy of that server with the extension.
# shellcheck shell=bash
# shellcheck source=scripts/server.sh
. "${root:?}/scripts/server.sh"

cd "$root" || exit
logs=${IDEM_LOGS:-$root/target/test}
rm -rf "$logs"
mkdir -p "$logs"

# One line for each suite that has run: its name, the tests that passed and failed, and the seconds. Suites that run
# side by side append to it, each a whole line at once.
results=$logs/results

private=()

# The last line of the output, set by the script that sources this file.
closing_line=''

# row NAME PASSED FAILED SECONDS
row() { printf '%-24s %7s %7s %8s\n' "$@"; }

# Prints the end of each failed suite's log, the table of all suites, and the totals, also when the run ends early.
finish() {
    local status=$? passed=0 failed=0 name ok bad seconds
    server_remove
    while IFS=$'\t' read -r name ok bad seconds; do
        [ "$bad" -eq 0 ] || { printf '\n%s:\n' "$name" && tail -n 15 "$logs/${name// /-}.log"; }
    done < <([ ! -e "$results" ] || cat "$results")
    if [ -s "$results" ]; then
        printf '\n'
        row suite passed failed seconds
        while IFS=$'\t' read -r name ok bad seconds; do
            row "$name" "$ok" "$bad" "$seconds"
            passed=$((passed + ok)) failed=$((failed + bad))
        done <"$results"
    fi
    [ "$status" -eq 0 ] || failed=$((failed + 1))
    printf '\n%d passed, %d failed in %d min %d s\n' "$passed" "$failed" $((SECONDS / 60)) $((SECONDS % 60))
    [ -z "$closing_line" ] || printf '%s\n' "$closing_line"
    [ "$failed" -eq 0 ] || exit 1
}
trap finish EXIT

# suite NAME COUNTER COMMAND...: runs a command. The counter reads its output and prints two numbers: tests passed and
# tests failed. A suite that fails without a failed test, or that runs no test at all, counts as one failed test.
suite() {
    local name=$1 counter=$2 log=$logs/${1// /-}.log start=$SECONDS status=0 ok bad seconds
    shift 2
    "$@" >"$log" 2>&1 </dev/null || status=$?
    read -r ok bad < <("$counter" <"$log")
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$ok" -eq 0 ]; }; then
        bad=1
    fi
    seconds=$((SECONDS - start))
    printf '%s\t%d\t%d\t%d\n' "$name" "$ok" "$bad" "$seconds" >>"$results"
    row "$name" "$ok" "$bad" "$seconds"
    if [ "$bad" -gt 0 ]; then
        tail -n 200 "$log"
        echo "(the whole log: $log)"
    fi
}

# skip NAME REASON: reports that a suite is skipped.
skip() {
    printf '%s\t0\t0\t%s\n' "$1" "skipped: $2" >>"$results"
    row "$1" 0 0 "skipped: $2"
}

count_checks() { awk '/^ok / { ok++ } /^not ok / { bad++ } END { print ok + 0, bad + 0 }'; }
count_cargo() { awk '/^test result:/ { ok += $4; bad += $6 } END { print ok + 0, bad + 0 }'; }
# The totals of test.sh.
count_totals() {
    sed -nE 's/^([0-9]+) passed, ([0-9]+) failed in .*/\1 \2/p' | awk '{ ok = $1; bad = $2 } END { print ok + 0, bad + 0 }'
}
# "All 7 tests passed." or "2 of 7 tests failed."
count_regress() {
    sed -nE -e 's/.*All ([0-9]+) tests passed.*/0 \1/p' \
        -e 's/^[# ]*([0-9]+) of ([0-9]+) tests failed.*/\1 \2/p' |
        awk '{ bad += $1; ok += $2 - $1 } END { print ok + 0, bad + 0 }'
}

# What a server must never write to its log, whatever the tests do.
never='TRAP:|PANIC:|WARNING:.*(leak|not closed|still referenced)|terminated by signal'
check_server_log() {
    if grep -E "$never" "$1"; then
        echo "not ok $1"
        return 1
    fi
    echo "ok $1"
}

# reconfigure COMMAND: edits the configuration of the running private server by a command of sed, and reloads it.
reconfigure() {
    sed -i "$1" "$server_dir/data/postgresql.conf"
    "$server_bin/psql" -Xqc 'SELECT pg_reload_conf()' >/dev/null
}

# golden_sql NAME PG_CONFIG: the golden SQL on the running private server.
golden_sql() {
    suite "$1 golden SQL" count_regress timeout 600 scripts/installcheck.sh "$2" regress
}

# golden_sql_and_isolation NAME PG_CONFIG [journal]: also the isolation specs, and with journal both over journals.
golden_sql_and_isolation() {
    golden_sql "$1" "$2"
    # The specs execute the steps of the sweep one by one, and a run of the worker between them would disturb them.
    reconfigure "\$ a idempotence.naptime = '1d'"
    suite "$1 isolation" count_regress timeout 600 scripts/installcheck.sh "$2" isolation
    [ -z "${3:-}" ] || suite "$1 over journals" count_regress timeout 600 scripts/installcheck.sh "$2" journal
    reconfigure '$ d'
}

# server_log_suite NAME: stops and removes the private server and checks its log.
server_log_suite() {
    server_stop
    cp "$server_log" "$logs/$1-server.log"
    server_remove
    suite "$1 server log" count_checks check_server_log "$logs/$1-server.log"
}

# side_by_side FUNCTION...: runs functions at the same time. Most suites wait more than they compute, so two of them
# take little longer than one.
side_by_side() {
    local function process processes=() status=0
    for function in "$@"; do
        (
            trap server_remove EXIT
            "$function"
        ) &
        processes+=($!)
    done
    for process in "${processes[@]}"; do
        wait "$process" || status=1
    done
    return "$status"
}

# Prints a directory for the data of many servers: in memory where there is room, because creating a file on a disk
# costs processor time and a server has a thousand files.
place_for_servers() {
    local place=/dev/shm room=$((16 << 20)) options
    # Some tests load libraries from there.
    options=$(findmnt -no OPTIONS "$place") && [[ ,$options, != *,noexec,* ]] &&
        [ "$(df --output=avail -k "$place" | tail -n 1)" -gt "$room" ] &&
        [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt "$room" ] || place=$(private_dir)
    echo "$place"
}

# Of tests that exist once for each of several versions, takes those of the versions in private.
of_private_versions() {
    awk -v versions=" ${!private[*]} " '
        match($0, /::pg[0-9]+$/) && index(versions, " " substr($0, RSTART + 4) " ") == 0 { next }
        { print }'
}

# Most tests exist once for each of several versions. The short form takes one version of each test, in turn;
# IDEM_LONG=1 takes all.
one_version_each() {
    if [ -n "${IDEM_LONG:-}" ]; then
        cat
    else
        awk '{ test = $0; sub(/::pg[0-9]+$/, "", test) }
            !(test in forms) { tests[++count] = test }
            { form[test, ++forms[test]] = $0 }
            END { for (i = 1; i <= count; i++) print form[tests[i], i % forms[tests[i]] + 1] }'
    fi
}

# cluster_tests NAME AT_ONCE PATTERN [--ignored]: runs the tests of tests/cluster whose names match, each in a process
# of its own and AT_ONCE of them at the same time. Each test starts its own servers, of the installations that
# private[VERSION] names. The largest files come first, because they take longest. The logs are in target/test/NAME.
# With --ignored it takes the tests that run only on request.
cluster_tests() (
    output=$logs/$1
    mkdir "$output"
    for version in "${!private[@]}"; do
        export "IDEM_PG${version}_CONFIG=${private[$version]}"
    done
    TMPDIR=$(mktemp -d "$(place_for_servers)/clusters.XXXXXX")
    trap 'rm -rf "$TMPDIR"' EXIT
    chmod 1777 "$TMPDIR"
    # Holds one cluster of each version, which the tests copy.
    export TMPDIR IDEM_CLUSTERS=$TMPDIR
    cargo test --locked -p idempotence-cluster-tests --test all --no-run 2>&1 | tee "$output/build" || exit
    program=$root/$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$output/build")
    cd tests/cluster || exit
    "$program" --list --format terse "${@:4}" | sed -n 's/: test$//p' | grep -E "$3" | of_private_versions | one_version_each >"$output/tests"
    status=0
    # shellcheck disable=SC2016 # the inner shell expands these
    du -s tests/* | sort -rn | sed -E 's#.*/##; s#\.rs$##' | awk '!seen[$0]++' |
        while read -r module; do
            grep "^$module::" "$output/tests" || true
        done |
        xargs -P "$2" -I '{}' bash -c 'timeout 900 "$@" >"$0/${3//::/.}.log" 2>&1' "$output" \
            "$program" --exact '{}' "${@:4}" || status=1
    # The logs of failed tests come last.
    cd "$output" || exit
    grep -l '^test result: ok' ./*.log | xargs cat
    grep -L '^test result: ok' ./*.log | xargs -r cat
    exit "$status"
)
