#!/usr/bin/env bash
# test_citus.sh: runs the tests on a Citus cluster of private servers, on Debian's PostgreSQL 15 or the one that
# PG15_CONFIG names. Does all the set-up itself, but for Citus: see citus.sh. IDEM_LONG=1 takes the long form.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
scripts/setup.sh
private=$(scripts/installation.sh "$pg15_config")
status=0
scripts/citus.sh "$pg15_config" "$private" || status=$?
[ "$status" -ne 3 ] || die "there is no Citus for $pg15_config. Install it there, or name a source: CITUS_SOURCE=..."
[ "$status" -eq 0 ] || exit "$status"
say "building the tests"
# Each test has three servers.
RUST_TEST_THREADS=1 IDEM_PG15_CONFIG=$private \
    cargo test --locked -p idempotence-cluster-tests --test citus -- --ignored "$@"
