#!/usr/bin/env bash
# run.sh [--vectors] PG_CONFIG: the tests of the client for Python, against a private server. A line for each test; fails
# if one fails. --vectors: only both files of vectors, each with one driver. Otherwise also types, traps, round trips,
# the README, docs/consumers.md and the chaos.
#
# IDEM_LONG=1: every driver and framework, chaos with 5000 keys and 500 kills, and 200 kills of completers.
# IDEM_MANAGED, the path of the edition for managed services: vectors and chaos with that edition instead of the extension.
#
# The Python packages are installed below target/, never into the system.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
only_vectors=''
if [ "${1:-}" = --vectors ]; then
    only_vectors=1
    shift
fi
pg_config=${1:?usage: run.sh [--vectors] PG_CONFIG}
trap server_remove EXIT

python=$root/target/clients/venv/bin/python
packages=('psycopg[binary,pool]>=3.2,<4' fastapi uvicorn httpx pytest pytest-xdist hatchling)
modules='fastapi, hatchling, httpx, psycopg_pool, pytest, uvicorn, xdist'
if [ -z "$only_vectors" ]; then
    packages+=(asyncpg psycopg2-binary 'sqlalchemy[asyncio]>=2' 'django>=5.1' djangorestframework gunicorn
        python-multipart pytest-django confluent-kafka pika mypy ruff)
    modules+=', asyncpg, confluent_kafka, django, gunicorn, mypy, pika, psycopg2, pytest_django, python_multipart'
    modules+=', rest_framework, ruff, sqlalchemy'
fi
if ! "$python" -c "import $modules" 2>/dev/null; then
    [ -x "$python" ] || quietly python3 -m venv "$root/target/clients/venv"
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
# pytest ARGUMENT...: in four processes. The HTTP vectors run in one (-n 0), because one of them ends all idle connections of
# the application's role.
pytest() {
    timeout 1200 "$python" -m pytest -p no:cacheprovider -p no:django -n 4 --dist loadfile -q --tb=short "$@" || status=1
}
# chaos NUMBER NUMBER COMMAND...: keys and kills.
chaos() {
    timeout 3000 "$python" "$here/../../chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" \
        --uri "$IDEM_URI" --keys "$1" --kills "$2" -- "$python" "$here/chaos_app.py" "${@:3}" '{uri}' '{port}'
}

cd "$here"
if [ -n "$only_vectors" ]; then
    pytest --dist load test_vectors.py -k 'psycopg-pool'
    pytest -n 0 test_http_vectors.py -k 'fastapi-psycopg-async'
    exit $status
fi
if [ -n "${IDEM_MANAGED:-}" ]; then
    pytest --dist load test_vectors.py -k 'asyncpg or psycopg-pool or sqlalchemy-async-session or sqlalchemy-psycopg2'
    pytest -n 0 test_http_vectors.py -k 'fastapi-psycopg-async or django-wsgi or starlette-asyncpg'
    pytest test_pooler.py
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
check rules ruff check --no-cache .
check format ruff format --no-cache --check .
# What the README installs: in the long form by itself, from nothing.
typed=$python
if [ -n "${IDEM_LONG:-}" ]; then
    rm -rf "$root/target/clients/typed"
    quietly python3 -m venv "$root/target/clients/typed"
    typed=$root/target/clients/typed/bin/python
    quietly "$typed" -m pip install --quiet --disable-pip-version-check \
        "$root/clients/python[fastapi,starlette,django]" uvicorn djangorestframework
fi
"$python" typed.py "$IDEM_URI" "$typed" || {
    echo 'not ok README.md'
    status=1
}
timeout 580 "$python" consumers.py "$IDEM_URI" || {
    echo 'not ok consumers'
    status=1
}
others=(test_traps.py test_setups.py test_effects.py test_cancelled.py test_round_trips.py test_complete.py test_check.py
    test_django_traps.py test_django_framework.py test_commit.py test_pooler.py)
# Django with psycopg2: what the client does by itself for it.
django=(-k django test_django_traps.py test_django_framework.py test_round_trips.py test_pooler.py test_commit.py)
if [ -n "${IDEM_LONG:-}" ]; then
    pytest "${others[@]}"
    pytest --dist load test_vectors.py
    pytest -n 0 test_http_vectors.py
    IDEM_DJANGO=psycopg2 pytest "${django[@]}" test_vectors.py
    IDEM_DJANGO=psycopg2 pytest -n 0 test_http_vectors.py -k django
    for app in fastapi' '{psycopg-async,psycopg-pool,asyncpg,sqlalchemy,sqlalchemy-async,sqlalchemy-psycopg-async} \
        'starlette psycopg-async' 'django django'; do
        # shellcheck disable=SC2086 # two words
        chaos 5000 500 $app || status=1
    done
else
    # One driver that blocks and one that does not; the long form adds the others.
    pytest "${others[@]}" -m 'not long'
    pytest --dist load test_vectors.py -k 'asyncpg or psycopg-pool'
    pytest -n 0 test_http_vectors.py -k 'fastapi-psycopg-async or django-wsgi'
    IDEM_DJANGO=psycopg2 pytest "${django[@]}" -m 'not long'
    chaos 200 20 fastapi psycopg-async || status=1
    chaos 200 20 django django || status=1
fi
# Proves that the chaos finds doubled effects where nothing protects.
if unprotected=$(chaos 200 20 unprotected psycopg-async) || ! grep -qE '[1-9][0-9]* doubled' <<<"$unprotected"; then
    echo "not ok chaos without protection: $unprotected"
    status=1
else
    echo 'ok chaos doubles what nothing protects'
fi
exit $status
