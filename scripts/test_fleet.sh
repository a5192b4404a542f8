#!/usr/bin/env bash
# test_fleet.sh [ARGUMENT...]: runs the tests of servers behind Patroni, HAProxy and pgpool-II, on Debian's PostgreSQL 15
# or the one that PG15_CONFIG names. Does all the set-up itself. IDEM_LONG=1 takes the long form.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
scripts/setup.sh
scripts/packages.sh "${fleet_packages[@]}"
private=$(scripts/installation.sh "$pg15_config")
say "building the tests"
# Each test has servers of its own.
RUST_TEST_THREADS=1 IDEM_PG15_CONFIG=$private cargo test --locked -p idempotence-cluster-tests \
    --test all -- --ignored --skip citus:: --skip plproxy:: "$@"
