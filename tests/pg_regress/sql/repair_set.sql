-- Goal: all requests with a prefix are forgotten or redacted, a bounded number in a call, without waiting for anybody; old rows
-- of the audit are deleted, and that is noted.
-- Method: prefixes with wildcards of LIKE and with the last characters of all; requests at work, leased, run out, stopped; calls
-- until 0; each mistake; each role.
\pset format unaligned
\pset tuples_only on
DELETE FROM idempotence.audit;
CREATE ROLE regress_set_owner;
CREATE ROLE regress_set_other;
CREATE ROLE regress_set_admin;
SELECT idem_grant('regress_set_owner'), idem_grant('regress_set_other'), idem_grant('regress_set_admin', 'admin');
SET ROLE regress_set_owner;
SELECT idem_create_session('set', ttl => '1 hour'), idem_create_session('set 2', ttl => '1 hour'), idem_create_session('set inbox', inbox => true), idem_create_session('set time', time_keys => true, ttl => '1 hour');
BEGIN;
SELECT count(idem_run('set', k, 'SELECT ''Ada''')) FROM unnest(ARRAY['a', 'a%b', 'axb', 'a%', 'a_b', 'a\b', 'b', E'b\U0010FFFF', E'b\U0010FFFFx', 'c']) k;
SELECT count(idem_run('set', 'n' || n, 'SELECT ''Ada''')) FROM generate_series(1, 25) n;
SELECT count(idem_run('set 2', k, 'SELECT ''Ada''')) FROM unnest('{a,n1}'::text[]) k;
SELECT idem_checkpoint('set', 'half', 'p', '"Ada"') FROM idem_begin('set', 'half');
SELECT idem_checkpoint('set', 'half without', 'p') FROM idem_begin('set', 'half without');
COMMIT;
RESET ROLE;
CREATE VIEW set_kept AS SELECT request, response IS NOT NULL AS response FROM idempotence.outcomes WHERE session = 'set';

-- a prefix is no pattern; case and bytes count
SET ROLE regress_set_owner;
SELECT prefix, idem_redact_prefix('set', prefix, 'a test') FROM unnest(ARRAY['a%', 'a_', 'a\', 'A', '%', E'b\U0010FFFF', 'b', 'none', repeat('n', 300)]) prefix;
RESET ROLE;
SELECT request, response FROM set_kept WHERE request !~ '^n' ORDER BY request COLLATE "C";
-- a bounded number, until 0
SET ROLE regress_set_owner;
SELECT idem_redact_prefix('set', 'n', 'a test', 10) AS one, idem_redact_prefix('set', 'n', 'a test', most => 10) AS two, idem_redact_prefix('set', 'n', 'a test', 10) AS three, idem_redact_prefix('set', 'n', 'a test', 10) AS four;
SELECT regress_show(idem_begin('set', 'n7')), regress_show(idem_begin('set 2', 'n1'));
RESET ROLE;
SELECT idem_explain('set', 'n7') -> 'outcome' ->> 'redacted', idem_explain('set', 'a') -> 'outcome' ->> 'redacted', idem_explain('set 2', 'n1') -> 'outcome' ->> 'redacted';
SET ROLE regress_set_owner;
-- the whole session: what is left of responses and states
SELECT idem_redact_prefix('set', '', 'all of it'), idem_redact_prefix('set', '', 'all of it');
SELECT regress_show(idem_lookup('set', 'half')), regress_show(idem_lookup('set', 'half without'));
SET ROLE regress_set_other;
SELECT regress_message($$SELECT idem_redact_prefix('set', 'a', 'why')$$), regress_message($$SELECT idem_forget_prefix('set', 'a', 'why')$$), regress_message($$SELECT idem_purge_audit(now(), 'why')$$), regress_message($$SELECT idem_force_release_prefix('set', 'a', 'why')$$);
SET ROLE regress_set_owner;
SELECT regress_message($$SELECT idem_forget_prefix('set', 'a', 'why')$$);

-- forgotten: outcomes, checkpoints and leases that ran out; not who is at work
RESET ROLE;
DELETE FROM idempotence.audit;
SELECT regress_take('a', idem_begin('set', 'n leased', lease => '1 hour'));
SELECT regress_take('b', idem_begin('set', 'n run out', lease => '1 hour'));
SELECT regress_lease_ends('set', 'n run out');
BEGIN;
SELECT idem_record('set', 'n prepared', '"Ada"') IS NOT NULL FROM idem_begin('set', 'n prepared');
PREPARE TRANSACTION 'regress_set';
BEGIN;
SELECT regress_show(idem_begin('set', 'n mine'));
SET ROLE regress_set_admin;
SELECT idem_forget_prefix('set', 'n', 'a test', 20);
SELECT idem_forget_prefix('set', 'n', 'a test', 20);
SELECT idem_forget_prefix('set', 'n', 'a test', 20);
SELECT idem_redact_prefix('set', 'n', 'a test');
RESET ROLE;
SELECT idem_release('set', 'n mine');
COMMIT;
SELECT regress_kept('set');
-- what is in the way keeps none behind it from being taken
SELECT idem_forget_prefix('set', '', 'a test', 1) FROM generate_series(1, 3);
COMMIT PREPARED 'regress_set';
SELECT idem_redact_prefix('set', 'n', 'a test'), regress_show(idem_begin('set', 'n prepared'));
SELECT idem_release('set', 'n leased', token => regress_token('a'));
SELECT idem_forget_prefix('set', '', 'a test'), idem_forget_prefix('set', '', 'a test');
SELECT regress_kept('set'), (SELECT count(*) FROM set_kept), (SELECT count(*) FROM idempotence.outcomes WHERE session = 'set 2');
SELECT action, session, request, reason, found FROM idempotence.audit ORDER BY at;

-- leases: those that ran out are taken away, and with live those end that have not run out; each kind until 0
DELETE FROM idempotence.audit;
SELECT count(idem_begin('set', 'l' || n, lease => '1 hour')) FROM generate_series(1, 5) n;
SELECT regress_take('c', idem_begin('set', 'l6', lease => '1 hour'));
SELECT regress_lease_ends('set', 'l' || n) FROM generate_series(1, 2) n;
BEGIN;
SELECT regress_show(idem_begin('set', 'l7', lease => '1 hour'));
SET ROLE regress_set_admin;
SELECT idem_force_release_prefix('set', 'l', 'a test', most => 1), idem_force_release_prefix('set', 'l', 'a test'), idem_force_release_prefix('set', 'l', 'a test');
SELECT idem_force_release_prefix('set', 'l', 'a test', live => true, most => 3), idem_force_release_prefix('set', 'l', 'a test', live => true), idem_force_release_prefix('set', 'l', 'a test', live => true);
RESET ROLE;
COMMIT;
SELECT regress_message($$SELECT idem_record('set', 'l6', token => regress_token('c'))$$);
SELECT regress_show(idem_begin('set', 'l1', lease => '1 hour')), regress_show(idem_begin('set', 'l6', lease => '1 hour'));
SELECT idem_force_release_prefix('set', '', 'a test', live => true), idem_force_release_prefix('set', '', 'a test'), regress_kept('set');
SELECT action, session, request, reason, found FROM idempotence.audit ORDER BY at;

-- an inbox, time keys in any case, a dropped session
SELECT count(*) FROM idem_once_many('set inbox', ARRAY(SELECT 'm' || n FROM generate_series(1, 30) n));
SELECT idem_forget_prefix('set inbox', 'm1', 'a test'), idem_once('set inbox', 'm1'), idem_once('set inbox', 'm2'), regress_error($$SELECT idem_redact_prefix('set inbox', '', 'why')$$);
SELECT regress_uuid7(now()) AS id \gset
SELECT regress_show(idem_run('set time', :'id', 'SELECT 1'));
SELECT idem_redact_prefix('set time', upper(left(:'id', 10)), 'a test'), regress_show(idem_run('set time', :'id', 'SELECT 1'));
SELECT idem_drop_session('set 2');
SELECT idem_redact_prefix('set 2', 'n', 'a test'), idem_forget_prefix('set 2', '', 'a test');

-- mistakes
SELECT call, regress_message('SELECT ' || call) FROM unnest(ARRAY[
  'idem_forget_prefix(NULL, ''a'', ''why'')', 'idem_forget_prefix(''set'', NULL, ''why'')', 'idem_forget_prefix(''set'', ''a'', NULL)', 'idem_forget_prefix(''set'', ''a'', ''why'', NULL)',
  'idem_redact_prefix(NULL, ''a'', ''why'')', 'idem_redact_prefix(''set'', NULL, ''why'')', 'idem_redact_prefix(''set'', ''a'', NULL)', 'idem_redact_prefix(''set'', ''a'', ''why'', NULL)',
  'idem_forget_prefix(''set'', ''a'', '' '')', 'idem_redact_prefix(''set'', ''a'', '''')', 'idem_forget_prefix(''set none'', ''a'', ''why'')', 'idem_redact_prefix(''set none'', ''a'', ''why'')',
  'idem_force_release_prefix(NULL, ''a'', ''why'')', 'idem_force_release_prefix(''set'', NULL, ''why'')', 'idem_force_release_prefix(''set'', ''a'', NULL)', 'idem_force_release_prefix(''set'', ''a'', ''why'', NULL)',
  'idem_force_release_prefix(''set'', ''a'', ''why'', most => NULL)', 'idem_force_release_prefix(''set'', ''a'', '' '')', 'idem_force_release_prefix(''set none'', ''a'', ''why'')', 'idem_force_release_prefix(''set inbox'', ''a'', ''why'')',
  'idem_purge_audit(NULL, ''why'')', 'idem_purge_audit(now(), NULL)', 'idem_purge_audit(now(), '' '')']) WITH ORDINALITY c (call, place) ORDER BY place;
SELECT regress_error($$SELECT idem_forget_prefix('set', 'a', 'why', 0)$$);
SELECT regress_message($$SELECT idem_redact_prefix('set', 'a', 'why', -1)$$), regress_message($$SELECT idem_redact_prefix('set', 'a', 'why', 2000000000)$$);
SELECT regress_registered('any', idem_register());
SELECT regress_error(format('SELECT idem_redact_prefix(%L, '''', ''why'')', regress_id('any')));
SELECT regress_message(format('SELECT idem_forget_prefix(%L, '''', ''why'')', regress_id('any'))), regress_error(format('SELECT idem_force_release_prefix(%L, '''', ''why'')', regress_id('any')));
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_redact_prefix('set', 'a', 'why')$$), regress_message($$SELECT idem_forget_prefix('set', 'a', 'why')$$), regress_message($$SELECT idem_purge_audit(now(), 'why')$$), regress_message($$SELECT idem_force_release_prefix('set', 'a', 'why')$$);
COMMIT;

-- the audit: what is older than a moment goes, and that is told; a moment to come means now; and what is logged is told
DELETE FROM idempotence.audit;
SELECT idem_redact('set', 'x', 'old'), idem_redact('set', 'x', 'older');
UPDATE idempotence.audit SET at = '2020-01-01 00:00:00+00' WHERE reason = 'older';
UPDATE idempotence.audit SET at = '2020-01-02 00:00:00+00' WHERE reason = 'old';
SET ROLE regress_set_admin;
SELECT idem_purge_audit('2020-01-02 00:00:00+00', 'kept for five years'), idem_purge_audit('-infinity', 'nothing');
SELECT idem_set_persistence('claims', 'logged');
SELECT action, session, request, reason, regexp_replace(found, ' (20|19).*', '') FROM idempotence.audit ORDER BY at;
SELECT idem_purge_audit('infinity', 'all');
SELECT action, reason, regexp_replace(found, ' 20.*', '') FROM idempotence.audit ORDER BY at;
RESET ROLE;
SELECT idem_set_persistence('claims', 'unlogged'), idem_set_persistence('claims', 'logged');
SELECT action, session, request, reason, found FROM idempotence.audit WHERE action = 'set_persistence' ORDER BY at;

DELETE FROM idempotence.audit;
DELETE FROM idempotence.persistence;
SELECT regress_close(), idem_drop_session('set'), idem_drop_session('set inbox'), idem_drop_session('set time');
DELETE FROM regress_lease_token;
DROP VIEW set_kept;
DROP OWNED BY regress_set_owner, regress_set_other, regress_set_admin;
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
DROP ROLE regress_set_owner, regress_set_other, regress_set_admin;
