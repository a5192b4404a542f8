#!/usr/bin/env bash
# monitoring_pictures.sh [SECONDS]: draws docs/images/monitoring-*.png anew: runs a load on a server of its own with the
# real exporter and the real Prometheus, and draws what the queries of the dashboard answer.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/server.sh"

"$root/scripts/setup.sh" test
pg_config=$("$root/scripts/installation.sh" "$("$root/scripts/test_server.sh" 15)")
python=$("$root/scripts/venv.sh" 'matplotlib>=3.8,<4')
mkdir -p "$root/docs/images"
trap server_remove EXIT
server_start "$pg_config" 'fsync = off' 'max_connections = 60' "shared_preload_libraries = 'idempotence'" \
    'idempotence.naptime = 2s'
"$python" "$root/tests/monitoring/draw.py" "$PGHOST" "$PGUSER" "$root/docs/images" "$@"
say "drawn: $root/docs/images"
