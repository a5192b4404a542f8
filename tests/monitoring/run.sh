#!/usr/bin/env bash
# run.sh PG_CONFIG: what monitoring/ says, against a known load with known mistakes: the real exporters and the real
# Prometheus, the check for Nagios, the report; and an incident, as docs/operations.md tells it. Starts a server of its
# own. The libraries for Python go below target/, never into the system. One line a check; fails if one does.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/../../scripts/server.sh"

pg_config=${1:?usage: run.sh PG_CONFIG}
for tool in python3 prometheus promtool prometheus-postgres-exporter prometheus-sql-exporter; do
    command -v "$tool" >/dev/null || die "there is no $tool: scripts/setup.sh test"
done
python=$("$root/scripts/venv.sh")
check=("$python" "$root/tests/monitoring/check.py")

failed=0
"${check[@]}" static || failed=1
trap server_remove EXIT
# A server with few lines for counters, so that they can be too few.
server_start "$pg_config" 'fsync = off' 'max_connections = 60' "shared_preload_libraries = 'idempotence'" \
    'idempotence.max_stats = 20' 'idempotence.naptime = 1s'
"${check[@]}" live "$PGHOST" "$PGUSER" "$server_bin" || failed=1
"${check[@]}" incident "$PGHOST" "$PGUSER" "$server_bin" "$server_log" || failed=1
server_stop
sed -i '/^shared_preload_libraries\|^idempotence\./d' "$server_dir/data/postgresql.conf"
as_server_user rm -f "$server_dir/data/postgresql.auto.conf"
as_server_user "$server_bin/pg_ctl" -D "$server_dir/data" -l "$server_log" -w -t 60 start >/dev/null
"${check[@]}" unpreloaded "$PGHOST" || failed=1
server_stop
if grep -E 'TRAP:|PANIC:|terminated by signal' "$server_log"; then
    echo 'not ok server log'
    failed=1
else
    echo 'ok server log'
fi
exit $failed
