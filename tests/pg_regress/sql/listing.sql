-- Goal: whoever may use a session lists its outcomes by key, status and time, the last recorded first and no more than
-- were asked for; nobody else does, and a monitor sees neither responses nor fingerprints.
-- Method: sessions of each kind with outcomes of each status, in each table; every argument alone, together and wrong.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_listing_owner;
CREATE ROLE regress_listing_borrower;
CREATE ROLE regress_listing_other;
CREATE ROLE regress_listing_monitor;
SELECT idem_grant(('regress_listing_' || r)::regrole) FROM unnest('{owner,borrower,other}'::text[]) r;
SELECT idem_grant('regress_listing_monitor', 'monitor');
SET ROLE regress_listing_owner;
SELECT idem_create_session('listing', ttl => '1 hour', usable_by => 'regress_listing_borrower'), idem_create_session('listing empty'),
       idem_create_session('listing inbox', inbox => true), idem_create_session('listing time', ttl => '1 day', time_keys => true);
SELECT regress_registered('strict', idem_register(ordering => 'strict')), regress_registered('any', idem_register());
RESET ROLE;

-- Recorded one after the other, each at a moment of its own.
CREATE PROCEDURE regress_listing_record(session text, keys text[], failed boolean DEFAULT false)
LANGUAGE plpgsql
AS $$
DECLARE
  key text;
BEGIN
  FOREACH key IN ARRAY keys LOOP
    PERFORM FROM idem_begin(session, key, payload => to_jsonb(key));
    PERFORM idem_record(session, key, to_jsonb('answer of ' || key), failed => failed);
    COMMIT;
  END LOOP;
END
$$;
SET ROLE regress_listing_owner;
CALL regress_listing_record('listing', '{order-1,order-2,invoice-1,order-10,Order-1,ordér-1,order%}');
CALL regress_listing_record('listing', '{order-3,invoice-2}', failed => true);
SELECT status FROM idem_settle('listing', 'order-4', response => '"never"');
SELECT regress_uuid7(now()) AS time_key \gset
CALL regress_listing_record('listing time', ARRAY[:'time_key']);
CALL regress_listing_record(regress_id('strict'), '{1,2}');
BEGIN;
SELECT status FROM idem_begin(regress_id('strict'), 1, last => 12, stream => 'a stream');
SELECT FROM idem_record(regress_id('strict'), 1, '"range"', stream => 'a stream');
COMMIT;
CALL regress_listing_record(regress_id('any'), '{3,1,2}');
SELECT count(*) FROM idem_once_many('listing inbox', '{m3,m1,m2}');

-- the last recorded first
SELECT request, status, response, fingerprint = idem_fingerprint(to_jsonb(request)) AS its_payload, recorded_by, recorded_at <= now() AS recorded, expires_at - recorded_at AS lives, stream, last FROM idem_outcomes('listing');
-- by key: what begins with these characters, none of which is a pattern
SELECT array_agg(request) FROM idem_outcomes('listing', prefix => 'order-');
SELECT array_agg(request) FROM idem_outcomes('listing', prefix => 'order-1');
SELECT array_agg(request) FROM idem_outcomes('listing', 'order%');
SELECT array_agg(request) FROM idem_outcomes('listing', 'ord_r');
SELECT array_agg(request) FROM idem_outcomes('listing', 'ordé');
SELECT count(*) FROM idem_outcomes('listing', '');
SELECT count(*) FROM idem_outcomes('listing', 'zzz');
-- by status
SELECT status, array_agg(request) FROM unnest('{succeeded,failed,cancelled}'::text[]) WITH ORDINALITY s (status, place), LATERAL (SELECT o.request FROM idem_outcomes('listing', status => s.status) o) o GROUP BY place, status ORDER BY place;
-- by time: since a moment, that one included, and before a moment, that one not included
SELECT recorded_at AS since FROM idem_outcomes('listing', prefix => 'order-10') \gset
SELECT array_agg(request) FROM idem_outcomes('listing', since => :'since');
SELECT array_agg(request) FROM idem_outcomes('listing', before => :'since');
SELECT array_agg(request) FROM idem_outcomes('listing', since => :'since', before => :'since');
SELECT count(*) FROM idem_outcomes('listing', since => '-infinity', before => 'infinity');
SELECT count(*) FROM idem_outcomes('listing', since => 'infinity') UNION ALL SELECT count(*) FROM idem_outcomes('listing', before => '-infinity');
-- all together
SELECT array_agg(request) FROM idem_outcomes('listing', 'order', 'succeeded', '-infinity', :'since', 2);
-- at most so many, and the next ones
SELECT array_agg(request), min(recorded_at) AS last FROM idem_outcomes('listing', most => 4) \gset
SELECT :'array_agg', array_agg(request) FROM idem_outcomes('listing', before => :'last', most => 4);
-- sessions of other kinds; a key of a session with time_keys in whatever case
SELECT request = :'time_key', status, response = to_jsonb('answer of ' || request) FROM idem_outcomes('listing time', upper(left(:'time_key', 12)));
SELECT request, status, response, fingerprint, expires_at > now() AS lives FROM idem_outcomes('listing inbox');
SELECT request, status, response, expires_at, stream, last FROM idem_outcomes(regress_id('strict'));
SELECT request, response FROM idem_outcomes(regress_id('strict'), prefix => '1');
SELECT array_agg(request) FROM idem_outcomes(regress_id('any'));
SELECT idem_ack(regress_id('any'), 2);
SELECT array_agg(request) FROM idem_outcomes(regress_id('any'));
SELECT count(*) FROM idem_outcomes('listing empty');
-- what has expired is not listed, what outlived its segment is
RESET ROLE;
WITH moved AS (DELETE FROM idempotence.outcome_0 WHERE key IN ('order-1', 'order-2') RETURNING *),
     moved_1 AS (DELETE FROM idempotence.outcome_1 WHERE key IN ('order-1', 'order-2') RETURNING *),
     moved_2 AS (DELETE FROM idempotence.outcome_2 WHERE key IN ('order-1', 'order-2') RETURNING *)
INSERT INTO idempotence.outcome_long SELECT (m).* FROM (SELECT m FROM moved m UNION ALL SELECT m FROM moved_1 m UNION ALL SELECT m FROM moved_2 m) x (m);
DELETE FROM idempotence.restore;
UPDATE idempotence.outcome_long SET expires_at = now() WHERE key = 'order-2';
SET ROLE regress_listing_owner;
SELECT array_agg(request) FROM idem_outcomes('listing', prefix => 'order-') WHERE request IN ('order-1', 'order-2', 'order-3');
-- in a transaction: its own records too; under REPEATABLE READ what its snapshot sees; in one that only reads
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT status FROM idem_begin('listing', 'own');
SELECT idem_record('listing', 'own') IS NOT NULL;
SELECT count(*) FROM idem_outcomes('listing', prefix => 'own');
ROLLBACK;
BEGIN READ ONLY;
SELECT count(*) FROM idem_outcomes('listing');
COMMIT;
-- an index of a DBA changes nothing but the time that it takes
RESET ROLE;
CREATE INDEX regress_listing_key ON idempotence.outcome_0 (session, key);
CREATE INDEX regress_listing_at ON idempotence.outcome_0 (session, recorded_at);
SET enable_seqscan = off;
SET ROLE regress_listing_owner;
SELECT array_agg(request) FROM idem_outcomes('listing');
SELECT array_agg(request) FROM idem_outcomes('listing', 'order-', since => :'since', most => 3);
RESET ROLE;
RESET enable_seqscan;
DROP INDEX idempotence.regress_listing_key, idempotence.regress_listing_at;

-- the borrower lists what it may use; others learn nothing; a monitor lists all, but neither responses nor fingerprints
SET ROLE regress_listing_borrower;
SELECT count(*), count(response), count(fingerprint) FROM idem_outcomes('listing');
SELECT regress_message($$SELECT FROM idem_outcomes('listing time')$$);
SET ROLE regress_listing_other;
SELECT regress_error($$SELECT FROM idem_outcomes('listing')$$);
SELECT regress_message($$SELECT FROM idem_outcomes('listing', status => 'wrong')$$);
SELECT regress_error($$SELECT FROM idem_outcomes(regress_id('strict'))$$);
SET ROLE regress_listing_monitor;
SELECT request, status, response, response_bytes > 0, fingerprint, recorded_by FROM idem_outcomes('listing', most => 2);
SELECT request, status, response, response_bytes > 0, fingerprint FROM idem_outcomes(regress_id('strict'), most => 2);
-- of a session that was dropped or has ended, too
SET ROLE regress_listing_owner;
SELECT idem_drop_session('listing'), idem_close(regress_id('strict'));
SELECT count(*) FROM idem_outcomes('listing');
SELECT count(*) FROM idem_outcomes(regress_id('strict'));
SET ROLE regress_listing_other;
SELECT regress_message($$SELECT FROM idem_outcomes('listing')$$);
RESET ROLE;

-- mistakes
SELECT regress_error($$SELECT FROM idem_outcomes('listing', status => 'done')$$);
SELECT regress_error($$SELECT FROM idem_outcomes('listing', most => 0)$$);
SELECT regress_message($$SELECT FROM idem_outcomes('listing', most => -1)$$);
SELECT regress_error($$SELECT FROM idem_outcomes('listing', most => 10001)$$);
SELECT regress_message($$SELECT FROM idem_outcomes('listing', most => NULL)$$);
SELECT regress_message($$SELECT FROM idem_outcomes(NULL)$$);
SELECT regress_message($$SELECT FROM idem_outcomes('no such session')$$);
SELECT regress_message($$SELECT FROM idem_outcomes('01890a5d-ac96-774b-bcce-b302099a8057')$$);

SELECT idem_drop_session(s) FROM unnest('{listing empty,listing inbox,listing time}'::text[]) s;
SELECT regress_close();
DROP PROCEDURE regress_listing_record;
SELECT idem_revoke(('regress_listing_' || r)::regrole) FROM unnest('{owner,borrower,other,monitor}'::text[]) r;
DROP ROLE regress_listing_owner, regress_listing_borrower, regress_listing_other, regress_listing_monitor;
