#!/usr/bin/env bash
# test.sh [--quick [VERSION]]: runs the whole suite, or with --quick a part that takes minutes: the lints, the unit tests,
# and on PostgreSQL VERSION (15) the golden SQL, the isolation specs, crashes and the demo. Does all the set-up itself. The
# suite has:
#
# * the tests of `make`, lints, unit tests and the search through the protocol of leases
# * on PostgreSQL 15 to 18, of which 17 and 18 have assertions: the golden SQL and a search of the server's log; on 15 and 18
#   also the isolation specs, and the golden SQL over journals; on 18 the drivers' examples (IDEM_LONG=1: all on all)
# * what monitoring/ shows and warns of, with the real exporters and the real Prometheus
# * that what bench/field kills takes effect once, or twice where nothing protects it
# * the packages, and the first minute with one of them
# * the clients for Python, node and Rust: vectors and chaos, and of the first two their README and types; vectors and chaos with
#   the edition for managed services
# * the vectors with the files for Java and Go, if a JDK and Go can be had
# * the tests that need whole clusters, each on one of two versions (IDEM_LONG=1: on both), and the demo
# * the archive for PGXN and the images, made, installed and run
# * shards behind PL/Proxy, if that is installed
# * failovers by Patroni, and pgpool-II, if they are installed
# * the tests on a Citus cluster, if Citus is installed or CITUS_SOURCE names its source
#
# The output goes to target/test. Here there is one line for each suite, and a table at the end.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/server.sh"

quick=''
case ${1:-} in
    '') ;;
    --quick)
        quick=${2:-15}
        [[ " ${test_versions[*]} " == *" $quick "* ]] || die "the suite is for the versions ${test_versions[*]}"
        ;;
    *) die "usage: test.sh [--quick [VERSION]]" ;;
esac

cd "$root"
unset PG_CONFIG # PG15_CONFIG to PG18_CONFIG name the servers here
logs=$root/target/test
rm -rf "$logs"
mkdir -p "$logs"

# The pg_config of each version's server, and of the private copy that has the extension.
config=() private=()

# A line for each suite that has run: its name, the tests passed and failed, and the seconds. Suites that run side by side
# write into it, each line at once.
results=$logs/results

# row NAME PASSED FAILED SECONDS
row() { printf '%-24s %7s %7s %8s\n' "$@"; }

# The last line of the output has the result, even if the run ends early. Before the table stands the end of each
# failed suite's log, which mostly has the reason.
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
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ] || exit 1
}
trap finish EXIT

# suite NAME COUNTER COMMAND...: runs a command. The counter reads the output and prints two numbers: tests passed
# and tests failed. A suite that fails without a failed test, or runs no test at all, counts as a failed test.
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
        echo "(all of it: $log)"
    fi
}

# skip NAME WHY: says that a suite is left out.
skip() {
    printf '%s\t0\t0\t%s\n' "$1" "skipped: $2" >>"$results"
    row "$1" 0 0 "skipped: $2"
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
    export PGRX_PG_CONFIG_PATH=$pg15_config
    status=0
    cargo test --locked --no-fail-fast -p idempotence --no-default-features --features pg15 ||
        status=1
    cargo test --locked --no-fail-fast --workspace \
        --exclude idempotence --exclude idempotence-cluster-tests --exclude idempotence-protocol-model || status=1
    cargo test --locked -p idempotence-cluster-tests --lib || status=1
    exit $status
)

# All states of the protocol of leases. Each search takes both cores by itself.
protocol() {
    timeout 1200 cargo test --locked --no-fail-fast -p idempotence-protocol-model -- --nocapture --test-threads 1
}

# What compiles. To compile one library keeps one core busy.
compiled() {
    local version
    suite 'make' count_checks tests/make/run.sh
    # Each branch of the code is for the oldest version or for the newest. All four versions are compiled.
    suite 'lints' count_checks scripts/lint.sh "${config[15]}" "${config[18]}"
    suite 'unit tests' count_cargo unit_tests
    for version in 16 17 18; do
        scripts/installation.sh "${config[$version]}" dev >"$logs/pg$version.config" || return
    done
}

# What a server must never have written to its log, whatever the tests did.
never='TRAP:|PANIC:|WARNING:.*(leak|not closed|still referenced)|terminated by signal'
check_server_log() {
    if grep -E "$never" "$1"; then
        echo "not ok $1"
        return 1
    fi
    echo "ok $1"
}

# Prints a directory for many servers: in memory, where there is room. On a disk, to make a file costs the processor time, and
# a server has a thousand.
place_for_servers() {
    local place=/dev/shm room=$((16 << 20)) options
    # Some tests load libraries from there.
    options=$(findmnt -no OPTIONS "$place") && [[ ,$options, != *,noexec,* ]] &&
        [ "$(df --output=avail -k "$place" | tail -n 1)" -gt "$room" ] &&
        [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt "$room" ] || place=$(private_dir)
    echo "$place"
}

# Of each test that is there for several versions the short form takes one, in turn; IDEM_LONG=1 takes all.
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

# cluster_tests NAME AT_ONCE PATTERN [--ignored]: runs those of the tests with servers of their own whose names fit, each in a
# process of its own, for they wait more than they work. What is large comes first, for it takes long. Their logs are in
# target/test/NAME. With --ignored it takes those that are ignored where nobody asks for them.
cluster_tests() (
    told=$logs/$1
    mkdir "$told"
    for version in "${!private[@]}"; do
        export "IDEM_PG${version}_CONFIG=${private[$version]}"
    done
    TMPDIR=$(mktemp -d "$(place_for_servers)/clusters.XXXXXX")
    trap 'rm -rf "$TMPDIR"' EXIT
    chmod 1777 "$TMPDIR"
    # One cluster of each version, which the tests copy.
    export TMPDIR IDEM_CLUSTERS=$TMPDIR
    cargo test --locked -p idempotence-cluster-tests --test all --no-run 2>&1 | tee "$told/build" || exit
    program=$root/$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$told/build")
    cd tests/cluster || exit
    "$program" --list --format terse "${@:4}" | sed -n 's/: test$//p' | grep -E "$3" | one_version_each >"$told/tests"
    status=0
    # shellcheck disable=SC2016 # the inner shell expands these
    du -s tests/* | sort -rn | sed -E 's#.*/##; s#\.rs$##' | awk '!seen[$0]++' |
        while read -r module; do
            grep "^$module::" "$told/tests" || true
        done |
        xargs -P "$2" -I '{}' bash -c 'timeout 900 "$@" >"$0/${3//::/.}.log" 2>&1' "$told" \
            "$program" --exact '{}' "${@:4}" || status=1
    # What failed comes last.
    cd "$told" || exit
    grep -l '^test result: ok' ./*.log | xargs cat
    grep -L '^test result: ok' ./*.log | xargs -r cat
    exit "$status"
)

# fleet NAME PROGRAM...: runs tests that are ignored where nobody asks for them, if these programs are there. Debian
# has some of them where only root looks.
fleet() {
    local name=$1 program
    shift
    for program in "$@"; do
        if ! PATH=$PATH:/usr/sbin command -v "$program" >/dev/null; then
            skip "$name" "no $program"
            return
        fi
    done
    suite "$name" count_cargo cluster_tests "$name" 1 "^$name::" --ignored
}

demo() {
    PG_CONFIG=${private[${quick:-15}]} scripts/demo.sh --quick && echo "ok demo"
}

# The drivers' examples, in a database of their own. PGPORT is in the environment.
snippets() {
    "$server_bin/createdb" snippets &&
        timeout 1200 tests/snippets/run.sh "postgresql:///snippets?host=$PGHOST&user=$PGUSER"
}

# Workers in Python that are killed: with the extension and by hand, and unprotected, to see that the kills hit; and with the
# edition for managed services in the extension's place.
field() {
    timeout 300 scripts/field.sh --server "${private[15]}" --check \
        --contenders unprotected,hand_written,begin_record,claim_pipeline,run &&
        timeout 300 scripts/field.sh --server "${private[15]}" --check --edition sql/managed/idempotence_managed.sql \
            --contenders begin_record,claim_pipeline,run
}

# Whether the files for Java and Go can be tried here.
has_java_and_go() {
    { command -v javac || scripts/packages.sh openjdk-17-jdk-headless; } && scripts/unpacked.sh "${agent_packages[@]}"
} >/dev/null

# clients [MANAGED]: the clients with the extension, or with the file of the edition for managed services in its place, on a server
# that has no extension.
clients() {
    local server=${private[18]} with=''
    if [ $# -gt 0 ]; then
        server=${config[18]} with=', managed'
        export IDEM_MANAGED=$1
    fi
    side_by_side python_and_rust node_java_and_go
}

python_and_rust() {
    client python python/
    client rust rust/
}

node_java_and_go() {
    client node node/
    if has_java_and_go; then
        client 'java and go' ''
    else
        skip "clients java and go$with" 'no JDK, or no Go'
    fi
}

# client NAME DIRECTORY: one of these.
client() { suite "clients $1$with" count_checks timeout 1200 "clients/$2tests/run.sh" "$server"; }

# reconfigure COMMAND: changes the server's configuration by a command of sed.
reconfigure() {
    sed -i "$1" "$server_dir/data/postgresql.conf"
    "$server_bin/psql" -Xqc 'SELECT pg_reload_conf()' >/dev/null
}

# on_server VERSION [SETTING...]: runs the suites that need one server, on a fresh private one. The edition's suite starts its own.
on_server() {
    local version=$1 name=pg$1 pg_config=${private[$1]}
    shift
    # On a busy machine an autovacuum may come between a test's steps, and has what the sweep would lock.
    server_start "$pg_config" 'fsync = off' 'autovacuum = off' "$@"
    suite "$name golden SQL" count_regress timeout 600 scripts/installcheck.sh "$pg_config" regress
    if [[ $quick$version != @(16|17) || ${IDEM_LONG:-} ]]; then
        # The specs take the steps of the sweep by hand, where a visit of the worker would come between them.
        reconfigure "\$ a idempotence.naptime = '1d'"
        suite "$name isolation" count_regress timeout 600 scripts/installcheck.sh "$pg_config" isolation
        [ -n "$quick" ] || suite "$name over journals" count_regress timeout 600 scripts/installcheck.sh "$pg_config" journal
        reconfigure '$ d'
    fi
    if [[ -z $quick && ( $version == 18 || ${IDEM_LONG:-} ) ]]; then
        suite "$name snippets" count_checks snippets
    fi
    server_stop
    cp "$server_log" "$logs/$name-server.log"
    server_remove
    suite "$name server log" count_checks check_server_log "$logs/$name-server.log"
    # The edition for managed services, with the extension beside it for the way up. The clients use it on the newest server.
    if [[ -z $quick && ( $version == 15 || ${IDEM_LONG:-} ) ]]; then
        suite "$name managed" count_checks timeout 900 tests/managed/run.sh "$pg_config"
    fi
}

# Two of the four servers preload the library and so have the worker: one with assertions and one without.
preloaded="shared_preload_libraries = 'idempotence'"

# Version 15 gets the release build, which users have, in a directory of its own. The others get the debug build, which has Rust's
# own assertions and overflow checks.
released() {
    scripts/installation.sh "${config[15]}" >"$logs/pg15.config"
    private[15]=$(<"$logs/pg15.config")
    on_server 15
    suite 'field' count_checks field
}

newest() { on_server 18 "$preloaded"; }

the_others() {
    on_server 16 "$preloaded"
    on_server 17
    suite 'protocol' count_cargo protocol
}

# side_by_side FUNCTION...: runs functions at the same time. Most of their suites wait more than they work, so two take
# little longer than one.
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

# Tests with servers of their own; and what `make` packs for others, installed as they do.
clusters_and_packages() {
    suite 'clusters' count_cargo cluster_tests clusters 4 .
    suite 'packages' count_checks tests/packages/run.sh "${config[15]}"
    if git rev-parse --verify --quiet HEAD >/dev/null; then
        suite 'pgxn' count_checks timeout 900 tests/pgxn/run.sh "${private[18]}"
    else
        skip pgxn 'no checkout of git'
    fi
    suite 'oci' count_checks timeout 900 tests/oci/run.sh "${config[18]}" dev
    # After the same clients with the extension, which build in the same places.
    flock -w 1800 "$logs/clients.lock" true
    clients "$root/sql/managed/idempotence_managed.sql"
}

# What stands around servers.
around() {
    (
        flock 8
        clients
    ) 8>"$logs/clients.lock"
    side_by_side watched several
}

# Monitoring, which waits for most of its time, and what is short.
watched() {
    suite 'monitoring' count_checks timeout 900 tests/monitoring/run.sh "${private[18]}"
    suite 'demo' count_checks demo
    if [ -e "$("${private[15]}" --pkglibdir)/plproxy.so" ]; then
        suite 'plproxy' count_cargo cluster_tests plproxy 1 '^plproxy::' --ignored
    else
        skip plproxy 'there is none'
    fi
}

# Several servers as one.
several() {
    local status=0
    fleet failover patroni etcd haproxy
    fleet splitting pgpool
    scripts/citus.sh "${config[18]}" "${private[18]}" || status=$?
    case $status in
        0) suite 'citus' count_cargo cluster_tests citus 1 '^citus::' --ignored ;;
        3) skip citus 'there is none' ;;
        *) suite 'citus' count_cargo false ;;
    esac
}

if [ -n "$quick" ]; then
    scripts/setup.sh lint
    # The other servers are unpacked or built.
    [ "$quick" -eq 15 ] || scripts/packages.sh python3-venv patchelf perl bison flex bzip2 zlib1g-dev
    config[quick]=$(scripts/test_server.sh "$quick")
    suite 'lints' count_checks scripts/lint.sh "${config[$quick]}"
    suite 'unit tests' count_cargo unit_tests
    private[quick]=$(scripts/installation.sh "${config[$quick]}")
    on_server "$quick"
    suite 'crashes' count_cargo cluster_tests crashes 2 "^crash::.*::pg$quick"
    suite 'demo' count_checks demo
    exit
fi

scripts/setup.sh test
scripts/field.sh --setup
for version in "${test_versions[@]}"; do
    config[version]=$(scripts/test_server.sh "$version")
done

side_by_side compiled released
for version in "${test_versions[@]}"; do
    private[version]=$(<"$logs/pg$version.config")
done
side_by_side newest the_others
side_by_side clusters_and_packages around
