#!/usr/bin/env bash
# run.sh [--vectors] PG_CONFIG: the tests of the client for node, against a private server: types, both files of
# vectors, the behavior in applications, the round trips, PgBouncer, a server that does not preload the library, the
# programs of README.md, and the chaos. --vectors: only the two files of vectors, with pg and Express. IDEM_LONG=1: each
# framework with each driver, all tests with the oldest node too, 200 kills of completers, and chaos with 5000 keys.
# IDEM_MANAGED, the path of the edition for managed services: vectors and chaos with that in place of the extension.
# Prints a line for each test, and fails if one does.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
only_vectors=
if [ "${1:-}" = --vectors ]; then
    only_vectors=1
    export IDEM_ONE=1
    shift
fi
pg_config=${1:?usage: run.sh [--vectors] PG_CONFIG}
trap server_remove EXIT

# shellcheck source=clients/node/tests/built.sh
. "$here/built.sh"

status=0
if quietly npx tsc && { [ -n "$only_vectors" ] || quietly npx tsc -p tests; }; then echo 'ok types'; else
    echo 'not ok types'
    status=1
fi

settings=("shared_preload_libraries = 'idempotence'")
[ -z "${IDEM_MANAGED:-}" ] || settings=()
server_start "$pg_config" 'fsync = off' 'max_connections = 200' "${settings[@]}"
"$server_bin/createdb" chaos
files=(tests/*.test.mjs)
if [ -n "$only_vectors${IDEM_MANAGED:-}" ]; then
    files=(tests/{http,vectors}.test.mjs)
fi
if [ -n "${IDEM_MANAGED:-}" ]; then
    "$server_bin/psql" -Xqc 'CREATE ROLE installer LOGIN'
    for database in postgres chaos; do
        "$server_bin/psql" -Xq -c "GRANT CREATE ON DATABASE $database TO installer" \
            -c "ALTER DATABASE $database SET search_path = public, idempotence"
        "$server_bin/psql" -Xq -v ON_ERROR_STOP=1 -U installer -d "$database" -f "$IDEM_MANAGED"
    done
else
    "$server_bin/psql" -Xqc 'CREATE EXTENSION idempotence'
fi
# tests NODE FILE...: one file after the other, as some cases terminate every idle connection. Prints one line for each
# test.
tests() {
    local failed=0
    timeout 900 "$1" --test --test-concurrency=1 --test-reporter=tap "${@:2}" >tap || failed=1
    sed -nE "s/^ *((not )?ok) [0-9]+ - /\\1 ${IDEM_POOLER:+PgBouncer: }/p" tap
    [ "$failed" -eq 0 ] && return
    status=1
    grep -A 20 '^ *not ok' tap || echo "not ok tests with $1"
}
tests node "${files[@]}"
[ -z "$only_vectors" ] || exit $status

# The same through PgBouncer in transaction mode, which gives each transaction any of five connections of the server.
if [ -z "${IDEM_MANAGED:-}" ] && command -v pgbouncer >/dev/null; then
    pooler=$(mktemp -d)
    printf '"%s" ""\n' postgres client_owner client_stranger client_nobody >"$pooler/users"
    printf '%s\n' '[databases]' "* = host=$PGHOST port=$PGPORT" '[pgbouncer]' 'listen_addr =' \
        "unix_socket_dir = $pooler" 'listen_port = 6432' 'auth_type = trust' "auth_file = $pooler/users" \
        'pool_mode = transaction' 'default_pool_size = 5' "logfile = $pooler/log" "pidfile = $pooler/pid" >"$pooler/ini"
    [ "$(id -u)" -ne 0 ] || chown -R postgres: "$pooler"
    as_server_user pgbouncer -q -d "$pooler/ini"
    IDEM_POOLER=$pooler tests node tests/{connection,vectors}.test.mjs
    [ -z "${IDEM_LONG:-}" ] || IDEM_POOLER=$pooler tests node tests/http.test.mjs
    kill "$(cat "$pooler/pid")"
    rm -rf "$pooler"
fi
# The oldest node that package.json names.
if [ -n "${IDEM_LONG:-}" ]; then
    oldest=$(sed -nE 's/.*"node": ">=([0-9.]+)".*/\1/p' package.json)
    quietly npm install --prefix "../node$oldest" --no-audit --no-fund --loglevel=error "node@$oldest"
    tests "../node$oldest/node_modules/.bin/node" "${files[@]}"
fi

# The programs of README.md, with packages from the registry, as its reader installs them.
[ -n "${IDEM_MANAGED:-}" ] || node tests/typed.mjs . || status=1

python=$("$root/scripts/venv.sh")
# chaos KEYS KILLS FRAMEWORK DRIVER
chaos() {
    timeout 1200 "$python" "$root/clients/chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" \
        --uri "postgresql:///chaos?host=$PGHOST&port=5432&user=postgres" --keys "$1" --kills "$2" \
        -- node "$PWD/tests/chaos_app.mjs" "${@:3}" '{uri}' '{port}' | sed "s/ chaos:/ chaos $3 $4:/"
}
if [ -n "${IDEM_LONG:-}" ]; then
    for framework in express express-res fastify; do
        for driver in pg postgres; do
            chaos 5000 500 "$framework" "$driver" || status=1
        done
    done
else
    chaos 200 20 express pg || status=1
    chaos 200 20 fastify postgres || status=1
fi

if [ -z "${IDEM_MANAGED:-}" ]; then
    server_remove
    server_start "$pg_config" 'fsync = off'
    "$server_bin/psql" -Xq -c 'SET client_min_messages = error' -c 'CREATE EXTENSION idempotence'
    tests node tests/check.mjs
fi
exit $status
