#!/usr/bin/env bash
# run.sh PG_CONFIG: the tests of the client for Python, against a private server: both files of vectors, what it catches,
# what its README and docs/consumers.md say, types, and the chaos. IDEM_LONG=1: each driver and framework, and chaos with 5000
# keys. IDEM_MANAGED, the path of the edition for managed services: vectors and chaos with that in the extension's place. The
# packages go below target/, never into the system. A line for each test; fails if one does.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
pg_config=${1:?usage: run.sh PG_CONFIG}
trap server_remove EXIT

python=$root/target/clients/venv/bin/python
packages=('psycopg[binary,pool]>=3.2,<4' asyncpg 'sqlalchemy[asyncio]>=2' fastapi uvicorn 'django>=5.1' confluent-kafka pika
    djangorestframework httpx pytest mypy ruff hatchling)
modules='asyncpg, confluent_kafka, django, fastapi, hatchling, httpx, mypy, pika, psycopg_pool, pytest, rest_framework, ruff'
if ! "$python" -c "import $modules" 2>/dev/null; then
    rm -rf "$root/target/clients/venv"
    quietly python3 -m venv "$root/target/clients/venv"
    quietly "$python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
fi
quietly "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    "$root/clients/python"

settings=("shared_preload_libraries = 'idempotence'")
[ -z "${IDEM_MANAGED:-}" ] || settings=()
server_start "$pg_config" 'fsync = off' 'max_connections = 200' "${settings[@]}"
"$server_bin/createdb" clients
IDEM_URI="postgresql:///clients?host=$PGHOST&port=5432&user=postgres"
export IDEM_URI PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1

status=0
# pytest ARGUMENT...
pytest() { timeout 580 "$python" -m pytest -p no:cacheprovider -q --tb=short "$@" || status=1; }
# chaos NUMBER NUMBER COMMAND...: keys and kills.
chaos() {
    timeout 1200 "$python" "$here/../../chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" \
        --uri "$IDEM_URI" --keys "$1" --kills "$2" -- "$python" "$here/chaos_app.py" "${@:3}" '{uri}' '{port}'
}

cd "$here"
if [ -n "${IDEM_MANAGED:-}" ]; then
    pytest test_vectors.py -k 'asyncpg or psycopg-pool'
    pytest test_http_vectors.py -k 'fastapi-psycopg-async or django'
    keys=200 kills=20
    [ -z "${IDEM_LONG:-}" ] || keys=5000 kills=500
    chaos $keys $kills fastapi psycopg-async || status=1
    exit $status
fi
# check NAME COMMAND...
check() {
    if (cd .. && quietly "$python" -m "${@:2}"); then echo "ok $1"; else
        echo "not ok $1"
        status=1
    fi
}
check types mypy --cache-dir "$root/target/clients/mypy"
check rules ruff check --no-cache . ../chaos ../roundtrips
check format ruff format --no-cache --check . ../chaos ../roundtrips
pytest test_traps.py test_django_traps.py test_commit.py
# What the README installs: in the long form by itself, from nothing.
typed=$python
if [ -n "${IDEM_LONG:-}" ]; then
    rm -rf "$root/target/clients/typed"
    quietly python3 -m venv "$root/target/clients/typed"
    typed=$root/target/clients/typed/bin/python
    quietly "$typed" -m pip install --quiet --disable-pip-version-check "$root/clients/python[fastapi,django]" uvicorn
fi
"$python" typed.py "$IDEM_URI" "$typed" || {
    echo 'not ok README.md'
    status=1
}
timeout 580 "$python" consumers.py "$IDEM_URI" || {
    echo 'not ok consumers'
    status=1
}
if [ -n "${IDEM_LONG:-}" ]; then
    pytest test_vectors.py
    pytest test_http_vectors.py
    for app in fastapi' '{psycopg-async,psycopg-pool,asyncpg,sqlalchemy,sqlalchemy-async} 'starlette psycopg-async' 'django django'; do
        # shellcheck disable=SC2086 # two words
        chaos 5000 500 $app || status=1
    done
else
    # One asynchronous driver and one that blocks; what the others add is in the long form.
    pytest test_vectors.py -k 'asyncpg or psycopg-pool'
    pytest test_http_vectors.py -k 'fastapi-psycopg-async or django'
    chaos 200 20 fastapi psycopg-async || status=1
    chaos 200 20 django django || status=1
fi
# What shows that the chaos finds something where nothing protects.
if unprotected=$(chaos 200 20 unprotected psycopg-async) || ! grep -qE '[1-9][0-9]* doubled' <<<"$unprotected"; then
    echo "not ok chaos without protection: $unprotected"
    status=1
else
    echo 'ok chaos doubles what nothing protects'
fi
exit $status
