#!/usr/bin/env bash
# citus.sh: measures what requests cost on a Citus cluster, in sessions with a journal and without, with a Citus as
# scripts/citus.sh finds it. ROUNDS, ROUND_SECONDS and CLIENTS say how long.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../scripts/common.sh"

cd "$root"
scripts/setup.sh
pg_config=$(scripts/test_server.sh 18)
private=$(scripts/installation.sh "$pg_config")
scripts/citus.sh "$pg_config" "$private" || die "there is no Citus for $pg_config, or it could not be built"
IDEM_PG18_CONFIG=$private cargo run --quiet --locked --release -p idempotence-cluster-tests --bin citus-bench
