#!/usr/bin/env bash
# test.sh: answers the question "does it work here?" in minutes. It builds the extension for PG_CONFIG's server (default:
# Debian's PostgreSQL 15), installs it into a private copy of that server, and runs there:
#
# * the unit tests
# * the golden SQL and the isolation specs, with the library preloaded, and a search of the server's log
# * backends and servers that are killed (tests/cluster/tests/crash.rs), cancels that meet a timeout, and errors that a
#   call catches
# * the README's examples
# * the vectors of the clients for Python and Node
#
# It installs the server, its development package, clang, and what the two clients need, and nothing else. test_all.sh runs
# every suite.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
[ $# -eq 0 ] || die "test.sh takes no arguments: PG_CONFIG names the server. CONTRIBUTING.md says how to run one suite or one test"
# shellcheck source=scripts/suites.sh
. "$root/scripts/suites.sh"

# Also a package's pg_config that PATH has: cargo and the tests run in other directories.
pg_config=${PG_CONFIG:-$pg15_config}
# With IDEM_SETUP_DONE nothing is installed, and what needs a missing program is skipped.
if [ -z "${IDEM_SETUP_DONE:-}" ]; then
    scripts/setup.sh
    client_packages=()
    python3 -c 'import ensurepip, venv' 2>/dev/null || client_packages+=(python3-venv)
    { command -v node && command -v npm; } >/dev/null || client_packages+=(nodejs npm)
    [ ${#client_packages[@]} -eq 0 ] || scripts/packages.sh "${client_packages[@]}"
fi

version=$(server_version "$pg_config")
pg_config=$(command -v "$pg_config")
say "testing PostgreSQL $version ($pg_config); the output is in $logs"
closing_line="This was PostgreSQL $version. make test-all runs every suite on 15 to 19 (up to an hour; it says what it installs)."

choose_rust
unit_tests() {
    PGRX_PG_CONFIG_PATH=$(own_pg_config "$pg_config") \
        cargo test "${rust_options[@]}" --locked --no-fail-fast -p idempotence --no-default-features --features "pg$version"
}

# The README's examples, in a database of their own. PGHOST and PGPORT are in the environment.
readme() {
    local python
    python=$(scripts/venv.sh 'psycopg[binary,pool]>=3.2,<4')
    PYTHONPATH=clients/python/src "$python" tests/snippets/check_readme.py \
        "postgresql:///postgres?host=$PGHOST&port=$PGPORT&user=$PGUSER" "$python"
}

on_one_server() {
    # On a busy machine an autovacuum might run between the steps of a test and hold a lock that the sweep needs.
    server_start "${private[$version]}" 'fsync = off' 'autovacuum = off' "shared_preload_libraries = 'idempotence'"
    golden_sql_and_isolation "pg$version" "${private[$version]}"
    suite 'README' count_checks readme
    server_log_suite "pg$version"
}

on_other_servers() {
    suite 'crashes' count_cargo cluster_tests crashes 2 \
        "^(crash|caught_errors|newest)::.*::pg$version|::a_cancel_is_never_taken_.*::pg$version"
    suite 'vectors python' count_checks timeout 600 clients/python/tests/run.sh --vectors "${private[$version]}"
    if command -v npm >/dev/null; then
        suite 'vectors node' count_checks timeout 600 clients/node/tests/run.sh --vectors "${private[$version]}"
    else
        skip 'vectors node' 'no npm'
    fi
}

suite 'unit tests' count_cargo unit_tests
private[version]=$(scripts/installation.sh "$pg_config" dev)
side_by_side on_one_server on_other_servers
