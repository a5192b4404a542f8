#!/usr/bin/env bash
# moving.sh: the way from the edition for managed services to the extension, and back, while both serve. Each key of 400 takes effect
# once: before the session is closed, in the one, after that in the other. The server of run.sh is in the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sql=$here/../../sql/managed
psql() { command psql -X -q -v ON_ERROR_STOP=1 "$@"; }
told=$(mktemp)
trap 'rm -f "$told"' EXIT

for name in managed extension; do
    psql -c "DROP DATABASE IF EXISTS moving_$name" -c "CREATE DATABASE moving_$name" 2>/dev/null
done
psql -d moving_managed -f "$sql/idempotence_managed.sql"
psql -d moving_managed -f "$sql/idempotence_moving.sql"
psql -d moving_extension -c 'SET client_min_messages = error' -c 'CREATE EXTENSION idempotence SCHEMA idempotence' 2>/dev/null ||
    psql -d moving_extension -c 'CREATE SCHEMA IF NOT EXISTS idempotence' -c 'CREATE EXTENSION idempotence SCHEMA idempotence'

# The same program for both: it pays keys from first to last, one transaction each, and notes which were refused.
for name in managed extension; do
    psql -d "moving_$name" <<'SQL' >/dev/null
ALTER DATABASE :DBNAME SET search_path = public, idempotence;
SET search_path = public, idempotence;
SELECT idem_create_session('payments', ttl => '1 day'), idem_create_session('inbox', inbox => true, ttl => '1 day');
CREATE TABLE ledger (key integer NOT NULL);
CREATE TABLE refused (key integer NOT NULL);
CREATE PROCEDURE pay(first integer, last integer) LANGUAGE plpgsql AS $$
DECLARE
  t idempotence.idem_ticket;
BEGIN
  FOR n IN first..last LOOP
    BEGIN
      t := idem_begin('payments', n, payload => to_jsonb(n));
      IF t.status = 'started' THEN
        INSERT INTO ledger VALUES (n);
        PERFORM pg_sleep(0.01), idem_record('payments', n, to_jsonb(n), failed => n % 10 = 0);
      END IF;
    EXCEPTION WHEN undefined_object THEN
      INSERT INTO refused VALUES (n);
    END;
    COMMIT;
  END LOOP;
END $$;
SQL
done
psql -d moving_managed -c "SELECT idem_settle('payments', 'settled'), idem_begin('payments', 'run out', lease => '10 ms'), idem_once('inbox', 'm')" >/dev/null

move() {
    local from=$1 to=$2 session=$3
    psql -d "$from" -c "COPY (SELECT * FROM idem_export('$session', 'moves')) TO STDOUT" >"$told"
    psql -d "$to" <<SQL
CREATE TEMP TABLE moved (key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz, expires_at timestamptz,
                         attempt integer, begun_at timestamptz, leased_until timestamptz, point text, state jsonb);
\\copy moved FROM '$told'
SELECT imported > 0 FROM idem_import('$session', 'TABLE moved', 'moves') \\g /dev/null
SQL
}
is() {
    [ "$1" = "$2" ] || { echo "not ok - $3: $1, not $2"; exit 1; }
}

psql -d moving_managed -c 'CALL pay(1, 400)' &
payer=$!
# The session is dropped in the middle, however slow the machine is.
while [ "$(psql -At -d moving_managed -c 'SELECT count(*) FROM ledger')" -lt 20 ]; do
    kill -0 "$payer" && sleep 0.05
done
psql -d moving_managed -c "SELECT idem_drop_session('payments'), idem_drop_session('inbox')" >/dev/null
move moving_managed moving_extension payments
move moving_managed moving_extension inbox
wait "$payer"
before=$(psql -At -d moving_managed -c 'SELECT count(*) FROM ledger')
[ "$before" -lt 400 ] || is "$before" 'fewer than 400' 'the session was dropped in the middle'
psql -d moving_extension -c 'CALL pay(1, 400)'
is "$(psql -At -d moving_extension -c 'SELECT count(*), count(DISTINCT key) FROM ledger')" "$((400 - before))|$((400 - before))" 'the rest is done once'
psql -At -d moving_managed -c 'TABLE ledger' | sort >"$told.a"
psql -At -d moving_extension -c 'TABLE ledger' | sort >"$told.b"
is "$(comm -12 "$told.a" "$told.b" | wc -l)" 0 'nothing is done twice'
rm "$told.a" "$told.b"
is "$(psql -At -d moving_extension -c "SELECT status, replayed FROM idem_begin('payments', 10)")" 'failed|t' 'a failure is replayed'
is "$(psql -At -d moving_extension -c "SELECT status FROM idem_begin('payments', 'settled')")" cancelled 'a verdict came along'
is "$(psql -At -d moving_extension -c "SELECT status FROM idem_begin('payments', 'run out', lease => '1 hour')")" taken_over 'a lease came along'
is "$(psql -At -d moving_extension -c "SELECT idem_once('inbox', 'm')")" f 'a message came along'
echo "ok - up: $before of 400 were done there, the others here"

# And back: what was done meanwhile is known where it comes from.
psql -d moving_extension -c "SELECT idem_release('payments', 'run out', token => (SELECT token FROM idempotence.lease WHERE request = 'run out'))" >/dev/null
psql -d moving_extension -c "SELECT idem_drop_session('payments')" >/dev/null
psql -d moving_managed -c "SELECT idem_create_session('payments', ttl => '1 day')" >/dev/null
move moving_extension moving_managed payments
psql -d moving_managed -c 'CALL pay(1, 400)'
is "$(psql -At -d moving_managed -c 'SELECT count(*) FROM ledger')" "$before" 'nothing is done again'
echo 'ok - and back: nothing is done again'
