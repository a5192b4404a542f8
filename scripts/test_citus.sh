#!/usr/bin/env bash
# test_citus.sh: runs the tests on a Citus cluster of private servers, on the PostgreSQL 18 with assertions or the one
# that PG18_CONFIG names. Does all the set-up itself, but for Citus: see citus.sh. IDEM_LONG=1 takes the long form.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
scripts/setup.sh
pg_config=$(scripts/test_server.sh 18)
private=$(scripts/installation.sh "$pg_config" dev)
status=0
scripts/citus.sh "$pg_config" "$private" || status=$?
[ "$status" -ne 3 ] || die "there is no Citus for $pg_config. Install it there, or name a source: CITUS_SOURCE=..."
[ "$status" -eq 0 ] || exit "$status"
say "building the tests"
# Each test has three servers.
RUST_TEST_THREADS=1 IDEM_PG18_CONFIG=$private \
    cargo test --locked -p idempotence-cluster-tests --test all -- --ignored \
    --skip failover:: --skip plproxy:: --skip splitting:: "$@"
