#!/usr/bin/env bash
# costs.sh PG_CONFIG: what the edition for managed services costs, beside a table of keys that is written by hand and beside the
# extension, if that is in the server: prints the table of docs/managed.md. One run measures all: the instructions at user level
# of the backend, by valgrind; transactions a second of 4 clients, the middle of 3 rounds; bytes of log. A transaction begins and
# records a new key, and does nothing else; a replay is one statement. COMMIT does not wait for a disk.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
pg_config=${1:?usage: costs.sh PG_CONFIG}
work=$(mktemp -d)
trap 'server_remove; rm -rf "$work"' EXIT
server_start "$pg_config" 'fsync = off' 'synchronous_commit = off' 'autovacuum = off' 'full_page_writes = off' 'max_wal_size = 4GB'
export PATH=$server_bin:$PATH
psql() { PGOPTIONS='-c client_min_messages=warning' command psql -XAtq -v ON_ERROR_STOP=1 "$@"; }

ways=(hand managed)
[ ! -e "$("$pg_config" --sharedir)/extension/idempotence.control" ] || ways+=(extension)
for way in "${ways[@]}"; do
    psql -c "CREATE DATABASE $way" -c "ALTER DATABASE $way SET search_path = public, idempotence"
done
psql -d hand -c 'CREATE TABLE request (scope text NOT NULL, key text NOT NULL, fingerprint bytea, response jsonb,
    created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz NOT NULL, PRIMARY KEY (scope, key))' \
    -c 'CREATE INDEX ON request (expires_at)' -c "INSERT INTO request VALUES ('payments', 'done', 'x', '{\"moved\": 5}', now(), now() + interval '1 day')"
psql -d managed -f "$root/sql/managed/idempotence_managed.sql"
[ -z "${ways[2]:-}" ] || psql -d extension -c 'CREATE SCHEMA idempotence' -c 'CREATE EXTENSION idempotence SCHEMA idempotence'

key="\\set n random(1, 1000000000000000)"
payload="'{\"to\": 2, \"amount\": 5}'" response="'{\"moved\": 5}'"
for way in "${ways[@]:1}"; do
    psql -d "$way" -c "SELECT idem_create_session('payments', ttl => '1 day'), idem_run('payments', 'done', 'SELECT 1', $payload)" >/dev/null
    echo "$key
BEGIN;
SELECT status, replayed, response FROM idem_begin('payments', 'key ' || :n, payload => $payload);
SELECT idem_record('payments', 'key ' || :n, $response);
COMMIT;" >"$work/$way.new"
    echo "SELECT status, replayed, response FROM idem_begin('payments', 'done', payload => $payload);" >"$work/$way.replay"
done
# shellcheck disable=SC2028 # the bytes are for the server to read
echo "$key
BEGIN;
INSERT INTO request (scope, key, fingerprint, expires_at) VALUES ('payments', 'key ' || :n, '\\x12345678', now() + interval '1 day')
ON CONFLICT DO NOTHING;
UPDATE request SET response = $response WHERE scope = 'payments' AND key = 'key ' || :n;
COMMIT;" >"$work/hand.new"
echo "SELECT fingerprint, response FROM request WHERE scope = 'payments' AND key = 'done' AND expires_at > now();" >"$work/hand.replay"

# pgbench WAY WHAT OPTION...
pgbench() { command pgbench -n -M prepared -f "$work/$1.$2" "${@:3}" "$1"; }
log() { psql -c "SELECT pg_current_wal_insert_lsn() - '0/0'"; }

declare -A bytes rates counts
for way in "${ways[@]}"; do
    for what in new replay; do
        pgbench "$way" "$what" -t 200 >/dev/null
        before=$(log)
        pgbench "$way" "$what" -t 2000 >/dev/null
        bytes[$way.$what]=$((($(log) - before) / 2000))
    done
done
for ((round = 0; round < 3; round++)); do
    for way in "${ways[@]}"; do
        for what in new replay; do
            rates[$way.$what]+=" $(pgbench "$way" "$what" -c 4 -j 2 -T 5 | sed -n 's/^tps = \([0-9]*\).*/\1/p')"
        done
    done
done

server_stop
printf '#!/bin/sh\nexec valgrind --quiet --tool=cachegrind --cache-sim=no --log-file=/dev/null --trace-children=yes --cachegrind-out-file=%s/count.%%p %s/postgres "$@"\n' \
    "$server_dir" "$server_bin" >"$server_dir/counted"
chmod 755 "$server_dir/counted"
as_server_user "$server_bin/pg_ctl" -D "$server_dir/data" -l "$server_log" -p "$server_dir/counted" -w -t 120 start >/dev/null
postmaster=$(head -n 1 "$server_dir/data/postmaster.pid")
# The server's own processes, when none is any more that only starts it.
until idle=$(pgrep -P "$postmaster" | wc -l) && sleep 5 && [ "$(pgrep -P "$postmaster" | wc -l)" -eq "$idle" ]; do :; done
# counted WAY WHAT TRANSACTIONS: the instructions of the backends of a run, which are counted when they end.
counted() {
    rm -f "$server_dir"/count.*
    pgbench "$1" "$2" -t "$3" >/dev/null
    until [ "$(pgrep -P "$postmaster" | wc -l)" -le "$idle" ]; do sleep 0.2; done
    cat "$server_dir"/count.* | awk '/^summary:/ { sum += $2 } END { printf "%.0f", sum }'
}
for way in "${ways[@]}"; do
    for what in new replay; do
        counted "$way" "$what" 100 >/dev/null
        few=$(counted "$way" "$what" 200)
        many=$(counted "$way" "$what" 2200)
        counts[$way.$what]=$(((many - few) / 2000000))
    done
done

echo "| | instructions | transactions/s | log |"
echo "|---|---|---|---|"
for what in new replay; do
    for way in "${ways[@]}"; do
        rate=$(tr ' ' '\n' <<<"${rates[$way.$what]}" | sed '/^$/d' | sort -n | sed -n 2p)
        echo "| $what, $way | ${counts[$way.$what]},000 | $rate | ${bytes[$way.$what]} bytes |"
    done
done
