#!/usr/bin/env bash
# run.sh [--long] PG_CONFIG: tests the edition for managed services on a private server, installed by a role that is no superuser.
# The long form of the kills (5000 keys, 500 kills), of retiring (a million), of the steps (all pairs) and of the stress (an hour)
# comes with --long. The way up and back needs a server with the extension, PgBouncer and PGlite take pgbouncer and npm: without,
# they are left out.
set -eEuo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"

keys=300 kills=40 outcomes=100000
if [ "${1:-}" = --long ]; then
    keys=5000 kills=500 outcomes=1000000
    export IDEM_STEPS=all IDEM_MINUTES=${IDEM_MINUTES:-60}
    shift
fi
pg_config=${1:?usage: run.sh [--long] PG_CONFIG}
here=$root/tests/managed
edition=$root/sql/managed/idempotence_managed.sql
moving=$root/sql/managed/idempotence_moving.sql
python=$("$root/scripts/venv.sh")
results=$root/target/managed/pg$(server_version "$pg_config")
mkdir -p "$results"
pooler='' packed='' golden='' settings=''
clean_up() {
    [ -z "$golden" ] || kill "$golden" 2>/dev/null || true
    [ -z "$settings" ] || kill "$settings" 2>/dev/null || true
    [ -z "$packed" ] || rm -f "$packed"*
    [ -z "$pooler" ] || kill "$(<"$pooler")" 2>/dev/null || true
    server_remove
}
trap clean_up EXIT
# A command that fails says so as a test does, whoever reads the output.
trap 'echo "not ok - line $LINENO: $BASH_COMMAND"' ERR
server_start "$pg_config" 'fsync = off' 'max_connections = 60'
export PATH="$server_bin:$PATH"

psql() { PGOPTIONS='-c client_min_messages=warning' command psql -X -q -v ON_ERROR_STOP=1 "$@"; }

# empty NAME: a fresh database of the installer's, whose default privileges are the worst that there can be.
empty() {
    psql -c "DROP DATABASE IF EXISTS $1" -c "CREATE DATABASE $1 OWNER managed_installer" \
        -c "ALTER DATABASE $1 SET search_path = public, idempotence"
    psql -U managed_installer -d "$1" -c 'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC' \
        -c 'ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC' -c 'ALTER DEFAULT PRIVILEGES GRANT CREATE ON SCHEMAS TO PUBLIC' \
        -c 'ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC' -c 'ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC'
}

# database NAME: the same with the edition in it.
database() {
    empty "$1"
    psql -U managed_installer -d "$1" -f "$edition"
    psql -d "$1" -c "GRANT ALL ON SCHEMA public TO managed_app" -c "SELECT idempotence.idem_grant('managed_app')" >/dev/null
}

# is WANTED DATABASE QUERY: whether the query's last row is this.
is() {
    local found
    found=$(psql -At -d "$2" -c "$3" | tail -n 1)
    [ "$found" = "$1" ] || { echo "not ok - $3: $found, not $1"; exit 1; }
}

# refused SQLSTATE OPTION...: whether psql with these options fails with this error.
refused() {
    local said state=$1
    shift
    said=$(psql -v VERBOSITY=sqlstate "$@" 2>&1) || true
    [[ $said == *" $state"* ]] || { echo "not ok - $*: $said, not $state"; exit 1; }
}

psql -c 'CREATE ROLE managed_installer LOGIN' -c 'CREATE ROLE managed_app LOGIN' -c 'CREATE ROLE managed_alice' \
    -c 'CREATE ROLE managed_mallory' -c 'CREATE ROLE managed_nobody'

# Installed again, it keeps what is there, dumped and restored too; dropped, it leaves nothing.
database upgrade
psql -d upgrade -c "SELECT idem_create_session('s'), idem_settle('s', 'k')" >/dev/null
psql -U managed_installer -d upgrade -f "$edition"
is cancelled upgrade "SELECT status FROM idem_lookup('s', 'k')"
empty restored
pg_dump -U managed_installer upgrade | psql -U managed_installer -d restored >/dev/null
psql -U managed_installer -d restored -f "$edition" -c 'CALL idempotence.idem_sweep()'
is cancelled restored "SELECT status FROM idem_lookup('s', 'k')"
# Where the sessions were left out, none is made anew.
empty half
pg_dump -U managed_installer --exclude-table-data=idempotence.session upgrade | psql -U managed_installer -d half >/dev/null
refused XX001 -d half -c "SELECT idem_create_session('s')"
refused 42704 -d half -c "BEGIN READ ONLY; SELECT idem_lookup('s', 'k')"
refused 42501 -d half -U managed_app -c "SELECT idempotence.idem_grant('managed_nobody')"
is t half "SELECT detail LIKE 'never swept%' FROM idempotence.health WHERE name = 'sweep'"
psql -U managed_installer -d upgrade -f "$moving"
refused 22023 -d upgrade -c "SELECT idem_import('s', 'SELECT 1 AS key, 2 AS respons', 'a test')"
# It gives way to who is at work.
psql -d upgrade -c "BEGIN; SELECT idem_begin('s', 'open'); SELECT pg_sleep(60)" >/dev/null 2>&1 &
at_work="FROM pg_stat_activity WHERE datname = 'upgrade' AND wait_event = 'PgSleep'"
while [ "$(psql -At -c "SELECT count(*) $at_work")" = 0 ]; do sleep 0.1; done
refused 55P03 -U managed_installer -d upgrade -f "$edition"
psql -c "SELECT pg_terminate_backend(pid) $at_work" >/dev/null
wait $! || true
psql -U managed_installer -d upgrade -c 'SET client_min_messages = error' -c 'DROP SCHEMA idempotence CASCADE'
is 0 upgrade "SELECT count(*) FROM pg_proc WHERE proname LIKE 'idem%'"
echo 'ok - installed, installed again, dumped, restored, dropped'

# What is packed for pg_tle, without pg_tle itself: its text. In a private copy of the server it is an extension of files, with what
# pg_tle makes of it, and is dumped and restored as one.
"$root/scripts/managed.sh" 2>/dev/null
sed -e '1d' -e '$d' "$root"/target/dist/idempotence_managed--*.pg_tle.sql >"$results/packed.sql"
extensions=$("$pg_config" --sharedir)/extension
empty packed
if [ -e "$extensions/idempotence.control" ]; then
    packed=$extensions/idempotence_managed
    printf "default_version = '1'\nsuperuser = false\nrelocatable = false\n" >"$packed.control"
    cp "$results/packed.sql" "$packed--1.sql"
    psql -U managed_installer -d packed -c 'CREATE EXTENSION idempotence_managed'
else
    { echo 'BEGIN;' && sed '/pg_extension_config_dump/d' "$results/packed.sql" && echo 'COMMIT;'; } | psql -U managed_installer -d packed
fi
psql -d packed -c "SELECT idempotence.idem_create_session('s')" -c "UPDATE idempotence.settings SET retention = '9 days'" >/dev/null
is cancelled packed "SELECT status FROM idem_settle('s', 'k')"
if [ -n "$packed" ]; then
    empty unpacked
    pg_dump packed | psql -d unpacked >/dev/null
    is cancelled unpacked "SELECT status FROM idem_lookup('s', 'k')"
    is '9 days' unpacked 'SELECT retention FROM idempotence.settings'
    is 3 unpacked 'SELECT count(*) FROM idempotence.segment'
    psql -d unpacked -c 'DROP EXTENSION idempotence_managed'
    echo 'ok - an extension that is made of what is packed for pg_tle is dumped and restored'
fi
echo 'ok - the text that is packed for pg_tle'

database attack
psql -d attack -c 'CREATE SCHEMA managed_mallory AUTHORIZATION managed_mallory' -c 'GRANT USAGE ON SCHEMA managed_mallory TO PUBLIC' \
    -c 'GRANT TEMP ON DATABASE attack TO managed_mallory' -c "SELECT idem_grant('managed_alice'), idem_grant('managed_mallory')" >/dev/null
command psql -X -a -q -d attack <"$here/attack.sql" >"$results/attack.out" 2>&1
diff -u "$here/attack.out" "$results/attack.out"
echo 'ok - an attacker gets nothing'

database claims
PGDATABASE=claims "$python" "$here/claims.py"

# Most of these two waits more than it works.
database settings
psql -U managed_installer -d settings -f "$moving"
PGDATABASE=settings "$python" "$here/settings.py" >"$results/settings" 2>&1 &
settings=$!
database golden
"$here/make_setup.py" | psql -d golden
ISOLATIONTESTER="$(dirname "$("$pg_config" --pgxs)")/../test/isolation/isolationtester" MANAGED_DATABASE=golden \
    "$here/golden.py" "$results" --races >"$results/golden" 2>&1 &
golden=$!

database kills
PGUSER=managed_app PGDATABASE=kills "$here/kills.py" "$keys" "$kills"

database retire
command psql -X -q -d retire -v n="$outcomes" -f "$here/retire.sql" 2>&1

database brief
command psql -X -q -d brief -f "$here/brief.sql" 2>&1

if command -v pgbouncer >/dev/null; then
    database pooled
    pooled=$(mktemp -d)
    printf '[databases]\n* = host=%s port=%s\n[pgbouncer]\nunix_socket_dir = %s\nlisten_port = 6432\nlisten_addr =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nlogfile = %s/log\npidfile = %s/pid\n' \
        "$PGHOST" "$PGPORT" "$pooled" "$pooled" "$pooled" | sed 's/^\* = /pooled = user=managed_app /' >"$pooled/ini"
    [ "$(id -u)" -ne 0 ] || chown -R postgres: "$pooled"
    # It tells its own number. That of the background command is its parent's.
    { as_server_user pgbouncer -q "$pooled/ini" || true; } &
    started=$!
    pooler=$pooled/pid
    direct="host=$PGHOST port=$PGPORT dbname=postgres"
    # On a machine that is busy, or has never started it, it takes its time.
    for ((waited = 0; ; waited++)); do
        PGHOST=$pooled PGPORT=6432 command psql -X -U managed_app -d pooled -c 'SELECT 1' >/dev/null 2>&1 && break
        [ "$waited" -lt 300 ] || { cat "$pooled/log" && false; }
        sleep 0.1
    done
    MANAGED_KILLER=$direct PGHOST=$pooled PGPORT=6432 PGUSER=managed_app PGDATABASE=pooled "$here/kills.py" 100 20
    kill "$(<"$pooler")"
    wait "$started"
    pooler=''
    rm -rf "$pooled"
    echo 'ok - through PgBouncer in transaction mode'
fi

# What npm installs stands in the lock file, and goes below target/.
if command -v npm >/dev/null; then
    pglite=$root/target/managed/pglite
    if ! cmp -s "$here/package-lock.json" "$pglite/node_modules/.lock"; then
        rm -rf "$pglite"
        mkdir "$pglite"
        cp "$here"/package*.json "$pglite"
        (cd "$pglite" && quietly npm ci --no-audit --no-fund --loglevel=error)
        cp "$here/package-lock.json" "$pglite/node_modules/.lock"
    fi
    MODULE=$pglite/node_modules/@electric-sql/pglite timeout 120 node "$here/pglite.mjs" "$edition"
fi

[ ! -e "$("$pg_config" --sharedir)/extension/idempotence.control" ] || "$here/moving.py"

empty steps
PGDATABASE=steps "$python" "$here/steps.py" "$edition" "$moving"

status=0
wait "$golden" || status=1
golden=''
wait "$settings" || status=1
settings=''
cat "$results/golden" "$results/settings"
[ "$status" -eq 0 ]

# It kills the server.
database stress
PGDATABASE=stress "$python" "$here/stress.py" "$server_dir/data" "$server_bin"
