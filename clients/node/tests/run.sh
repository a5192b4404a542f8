#!/usr/bin/env bash
# run.sh PG_CONFIG: the tests of the client for node, against a private server: types, both files of vectors, what it catches,
# what its README says, and the chaos. IDEM_LONG=1: each framework with each driver, the vectors with the oldest node too, and
# chaos with 5000 keys. IDEM_MANAGED, the path of the edition for managed services: vectors and chaos with that in the
# extension's place. What npm installs stands in the lock file, and goes below target/. A line for each test; fails if one does.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
pg_config=${1:?usage: run.sh PG_CONFIG}
trap server_remove EXIT

# shellcheck source=clients/node/tests/built.sh
. "$here/built.sh"

status=0
if quietly npx tsc && quietly npx tsc -p tests; then echo 'ok types'; else
    echo 'not ok types'
    status=1
fi

settings=("shared_preload_libraries = 'idempotence'")
[ -z "${IDEM_MANAGED:-}" ] || settings=()
server_start "$pg_config" 'fsync = off' 'max_connections = 200' "${settings[@]}"
"$server_bin/createdb" chaos
files=(tests/*.test.mjs)
if [ -n "${IDEM_MANAGED:-}" ]; then
    files=(tests/{http,vectors}.test.mjs)
    "$server_bin/psql" -Xqc 'CREATE ROLE installer LOGIN'
    for database in postgres chaos; do
        "$server_bin/psql" -Xq -c "GRANT CREATE ON DATABASE $database TO installer" \
            -c "ALTER DATABASE $database SET search_path = public, idempotence"
        "$server_bin/psql" -Xq -v ON_ERROR_STOP=1 -U installer -d "$database" -f "$IDEM_MANAGED"
    done
else
    "$server_bin/psql" -Xqc 'CREATE EXTENSION idempotence'
fi
# tests NODE FILE...: one file after the other, for a case ends what is idle. One line for each test, without the summary.
tests() {
    local failed=0
    timeout 900 "$1" --test --test-concurrency=1 --test-reporter=tap "${@:2}" >tap || failed=1
    sed -nE 's/^ *((not )?ok) [0-9]+ - /\1 /p' tap
    [ "$failed" -eq 0 ] && return
    status=1
    grep -A 20 '^ *not ok' tap || echo "not ok tests with $1"
}
tests node "${files[@]}"
# The oldest node that package.json names.
if [ -n "${IDEM_LONG:-}" ]; then
    oldest=$(sed -nE 's/.*"node": ">=([0-9]+)".*/\1/p' package.json)
    quietly npm install --prefix "../node$oldest" --no-audit --no-fund --loglevel=error "node@$oldest"
    tests "../node$oldest/node_modules/.bin/node" tests/{http,vectors}.test.mjs
fi

# typed: what README.md says. It takes packages from the registry, as its reader does.
[ -n "${IDEM_MANAGED:-}" ] || node tests/typed.mjs . || status=1

python=$("$root/scripts/venv.sh")
# chaos KEYS KILLS FRAMEWORK DRIVER
chaos() {
    timeout 1200 "$python" "$root/clients/chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" \
        --uri "postgresql:///chaos?host=$PGHOST&port=5432&user=postgres" --keys "$1" --kills "$2" \
        -- node "$PWD/tests/chaos_app.mjs" "${@:3}" '{uri}' '{port}' | sed "s/ chaos:/ chaos $3 $4:/"
}
if [ -n "${IDEM_LONG:-}" ]; then
    for framework in express fastify; do
        for driver in pg postgres; do
            chaos 5000 500 "$framework" "$driver" || status=1
        done
    done
else
    chaos 200 20 express pg || status=1
    chaos 200 20 fastify postgres || status=1
fi
exit $status
