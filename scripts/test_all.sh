#!/usr/bin/env bash
# test_all.sh: runs every suite on PostgreSQL 15 to 19, and does all the set-up itself. `make test` (test.sh) is the short
# answer for the server at hand. The suites are:
#
# * the tests of `make`, the lints, the unit tests, and the model of the protocol of leases
# * on PostgreSQL 15 to 19, of which 17 and 18 are built with assertions: the golden SQL and a search of the server's log;
#   on 15 and 18 also the isolation specs and the golden SQL over journals; on 18 the drivers' examples (IDEM_LONG=1: all
#   suites on all versions)
# * monitoring: what monitoring/ shows and warns about, with the real exporters and the real Prometheus
# * field: the workers that bench/field kills take effect once, and more than once where nothing protects them
# * the packages, and the first minute with one of them
# * the clients for Python, Node and Rust: vectors and chaos, and for the first two the README and the types; vectors and
#   chaos with the edition for managed services; the vectors with the files for Java and Go, if a JDK and Go are available
# * PostgreSQL 19: what `make test` runs, the demo, and the edition for managed services, in a Debian tree of its own
# * the tests that need whole clusters, each on one of two versions (IDEM_LONG=1: on both), and the demo
# * the archive for PGXN and the images: made, installed and run
# * shards behind PL/Proxy; failovers by Patroni, and pgpool-II; a Citus cluster, if Citus is installed or CITUS_SOURCE
#   names its source
#
# The output goes to target/test. This script prints one line for each suite, and a table at the end.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "test_all.sh takes no arguments. CONTRIBUTING.md says how to run one suite"
# shellcheck source=scripts/suites.sh
. "$root/scripts/suites.sh"
unset PG_CONFIG # PG15_CONFIG to PG18_CONFIG name the servers here

cat >&2 <<'END'
This runs every suite. It takes 25 to 50 minutes on two cores, and 20 minutes more the first time, when it installs from
Debian's packages what is missing of: PostgreSQL 15 with pg_cron, pg_repack and PL/Proxy, PgBouncer, Prometheus with two
exporters, RabbitMQ, Patroni, etcd, HAProxy, pgpool-II, a JDK, Go and Node.js; and unpacks PostgreSQL 16 and builds 17 and
18 into the cache. PostgreSQL 19 comes as an unpacked Debian tree (2.5 GB, in the cache too). None of these services is
started or enabled. `make test` tests the server at hand, in minutes.
END

# The pg_config of each version's server, without the extension.
config=()

unit_tests() (
    export PGRX_PG_CONFIG_PATH=$pg15_config
    choose_rust
    status=0
    cargo test "${rust_options[@]}" --locked --no-fail-fast -p idempotence --no-default-features --features pg15 ||
        status=1
    cargo test "${rust_options[@]}" --locked --no-fail-fast --workspace \
        --exclude idempotence --exclude idempotence-cluster-tests --exclude idempotence-protocol-model || status=1
    cargo test --locked -p idempotence-cluster-tests --lib || status=1
    exit $status
)

# All states of the protocol of leases. Each search uses both cores.
protocol() {
    timeout 1200 cargo test --locked --no-fail-fast -p idempotence-protocol-model -- --nocapture --test-threads 1
}

# What the compiler checks and builds. Compiling one library keeps only one core busy, so other suites run beside it.
compiled() {
    local version
    suite 'make' count_checks tests/make/run.sh
    # Each conditional branch of the code applies to the oldest or to the newest version. All versions are compiled.
    suite 'lints' count_checks scripts/lint.sh "${config[15]}" "${config[18]}"
    suite 'unit tests' count_cargo unit_tests
    for version in 16 17 18; do
        scripts/installation.sh "${config[$version]}" dev >"$logs/pg$version.config" || return
    done
}

# fleet NAME PROGRAM...: runs tests that run only on request, if these programs are installed. Debian installs some of
# them in /usr/sbin.
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
    PG_CONFIG=${private[15]} scripts/demo.sh --quick && echo "ok demo"
}

# The drivers' examples, in a database of their own. PGPORT is in the environment.
snippets() {
    "$server_bin/createdb" snippets &&
        timeout 1200 tests/snippets/run.sh "postgresql:///snippets?host=$PGHOST&user=$PGUSER"
}

# Workers in Python that are killed: with the extension, with a hand-written table, and unprotected, which shows that the
# kills hit; and with the edition for managed services instead of the extension.
field() {
    timeout 300 scripts/field.sh --server "${private[15]}" --check \
        --contenders unprotected,hand_written,begin_record,claim_pipeline,run &&
        timeout 300 scripts/field.sh --server "${private[15]}" --check --edition sql/managed/idempotence_managed.sql \
            --contenders begin_record,claim_pipeline,run
}

# Whether the clients for Java and Go can be compiled here.
has_java_and_go() {
    { command -v javac || scripts/packages.sh openjdk-17-jdk-headless; } && scripts/unpacked.sh "${agent_packages[@]}"
} >/dev/null

# clients [MANAGED]: the clients with the extension, or, on a server that has no extension, with this file of the edition
# for managed services.
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
    [ -n "$with" ] || client 'round trips' roundtrips/
}

node_java_and_go() {
    client node node/
    if has_java_and_go; then
        client 'java and go' ''
    else
        skip "clients java and go$with" 'no JDK, or no Go'
    fi
}

# client NAME DIRECTORY: the suite of one client.
client() { suite "clients $1$with" count_checks timeout 1200 "clients/$2tests/run.sh" "$server"; }

# on_server VERSION [SETTING...]: runs the suites that need one server, on a fresh private one.
on_server() {
    local version=$1 name=pg$1 pg_config=${private[$1]}
    shift
    # On a busy machine an autovacuum might run between the steps of a test and hold a lock that the sweep needs.
    server_start "$pg_config" 'fsync = off' 'autovacuum = off' "$@"
    if [[ $version != @(16|17) || ${IDEM_LONG:-} ]]; then
        golden_sql_and_isolation "$name" "$pg_config" journal
    else
        golden_sql "$name" "$pg_config"
    fi
    if [[ $version == 18 || ${IDEM_LONG:-} ]]; then
        suite "$name snippets" count_checks snippets
    fi
    server_log_suite "$name"
    # The edition for managed services, on servers of its own. The clients use it on the newest version.
    if [[ $version == 15 || ${IDEM_LONG:-} ]]; then
        suite "$name managed" count_checks timeout 900 tests/managed/run.sh "$pg_config"
    fi
}

# Two of the four servers preload the library and so have the worker: one with assertions and one without.
preloaded="shared_preload_libraries = 'idempotence'"

# Version 15 gets the release build, as users have it. The others get the debug build, which has Rust's assertions and
# overflow checks.
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

# Tests that start their own servers, and the packages that `make` builds, installed as users install them.
clusters_and_packages() {
    suite 'clusters' count_cargo cluster_tests clusters 4 .
    suite 'packages' count_checks tests/packages/run.sh "${config[15]}"
    if git rev-parse --verify --quiet HEAD >/dev/null; then
        suite 'pgxn' count_checks timeout 900 tests/pgxn/run.sh "${private[18]}"
    else
        skip pgxn 'no checkout of git'
    fi
    suite 'oci' count_checks timeout 900 tests/oci/run.sh "${config[18]}" dev
    # Waits for the same clients with the extension, which build in the same directories.
    flock -w 1800 "$logs/clients.lock" true
    clients "$root/sql/managed/idempotence_managed.sql"
}

# Programs around servers: clients, monitoring, high availability.
around() {
    (
        flock 8
        clients
    ) 8>"$logs/clients.lock"
    side_by_side watched several
}

# Monitoring, which mostly waits, and short suites.
watched() {
    suite 'monitoring' count_checks timeout 900 tests/monitoring/run.sh "${private[18]}"
    suite 'demo' count_checks demo
    if [ -e "$("${private[15]}" --pkglibdir)/plproxy.so" ]; then
        suite 'plproxy' count_cargo cluster_tests plproxy 1 '^plproxy::' --ignored
    else
        skip plproxy 'not installed'
    fi
    newest_release
}

# PostgreSQL 19: the server that PG19_CONFIG names, or Debian's in a tree of its own. What `make test` runs, with the
# vectors of the clients for Python and Node; the demo; and the edition for managed services.
newest_release() {
    local status=0 inside=(scripts/postgresql_19.sh env IDEM_SETUP_DONE=1 PG_CONFIG=/usr/lib/postgresql/19/bin/pg_config)
    # shellcheck disable=SC2016 # the inner shell expands these
    local tests='scripts/test.sh && PG_CONFIG=$(scripts/installation.sh "$PG_CONFIG" dev) scripts/demo.sh --quick'
    if [ -n "${PG19_CONFIG:-}" ]; then
        inside=(env "PG_CONFIG=$PG19_CONFIG" "IDEM_LOGS=$logs/pg19")
    else
        scripts/postgresql_19.sh true >"$logs/pg19-setup.log" 2>&1 || status=$?
    fi
    case $status in
        0)
            suite 'pg19' count_totals timeout 2400 "${inside[@]}" bash -c "$tests"
            # shellcheck disable=SC2016 # the inner shell expands it
            suite 'pg19 managed' count_checks timeout 900 "${inside[@]}" bash -c 'tests/managed/run.sh "$PG_CONFIG"'
            ;;
        3) skip pg19 'its packages are not available' ;;
        *) suite 'pg19' count_checks cat "$logs/pg19-setup.log" ;;
    esac
}

# Several servers that act as one.
several() {
    local status=0
    fleet failover patroni etcd haproxy
    fleet splitting pgpool
    scripts/citus.sh "${config[18]}" "${private[18]}" || status=$?
    case $status in
        0) suite 'citus' count_cargo cluster_tests citus 1 '^citus::' --ignored ;;
        3) skip citus 'not installed' ;;
        *) suite 'citus' count_cargo false ;;
    esac
}

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
