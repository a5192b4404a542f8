-- Goal: an inbox says of each key once that it is new, whoever asks, one by one or many at a time.
-- Method: batches with all sorts of duplicates; the join that a consumer writes.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('inbox', ttl => '1 hour', inbox => true);

-- one by one, as text and as number
SELECT idem_once('inbox', 'm1'), idem_once('inbox', 'm1');
SELECT idem_once('inbox', 'm1');
SELECT idem_once('inbox', 1), idem_once('inbox', '1'), idem_once('inbox', 2), idem_once('inbox', 2);
SELECT regress_show(idem_lookup('inbox', 'm1')), regress_show(idem_lookup('inbox', 'm0')), regress_show(idem_lookup('inbox', 1));
SELECT request, status, response, fingerprint, recorded_by = current_user FROM idempotence.outcomes WHERE session = 'inbox' ORDER BY 1;
-- no lock for a key
BEGIN;
SELECT idem_once('inbox', 'm2');
SELECT regress_claims();
ROLLBACK;
-- seen exactly if the transaction commits
SELECT idem_once('inbox', 'm2');
BEGIN;
SELECT idem_once('inbox', 'm3');
SAVEPOINT s;
SELECT idem_once('inbox', 'm4'), idem_once('inbox', 'm3');
ROLLBACK TO s;
SELECT idem_once('inbox', 'm4'), idem_once('inbox', 'm3');
COMMIT;
SELECT idem_once('inbox', 'm4'), idem_once('inbox', 'm3');

-- many: those seen for the first time, once each, with their first place, in the order of the array
SELECT * FROM idem_once_many('inbox', '{b1,b2,b1,b3,b2,b1}');
SELECT * FROM idem_once_many('inbox', '{b1,b4,b3,b4,b5}');
SELECT * FROM idem_once_many('inbox', '{b1,b4,b3,b4,b5}');
SELECT * FROM idem_once_many('inbox', '{}');
SELECT * FROM idem_once_many('inbox', '{z,y,x,w,v,u,t,s,r,q,p}');
SELECT idem_once('inbox', 'b5'), idem_once('inbox', 'b6');
SELECT * FROM idem_once_many('inbox', '{b6,b7}');
-- keys are texts, letter by letter
SELECT * FROM idem_once_many('inbox', ARRAY['c', 'C', 'c ', ' c', U&'\00e7', U&'c\0327', '"c"', 'NULL', '{}', 'c']);
-- twice in one statement
SELECT a.request, b.request FROM idem_once_many('inbox', '{d1,d2}') a FULL JOIN idem_once_many('inbox', '{d2,d3}') b USING (request) ORDER BY 1, 2;

-- the join: what came with the keys, for the new ones only
SELECT m.id, m.body, m.ord
FROM unnest('{j1,j2,j1,j3}'::text[], '{first,second,first again,third}'::text[]) WITH ORDINALITY m (id, body, ord)
JOIN idem_once_many('inbox', '{j1,j2,j1,j3}') USING (ord)
ORDER BY ord;
SELECT m.id, m.body, m.ord
FROM unnest('{j3,j4}'::text[], '{third,fourth}'::text[]) WITH ORDINALITY m (id, body, ord)
JOIN idem_once_many('inbox', '{j3,j4}') USING (ord)
ORDER BY ord;

-- as a consumer writes it
CREATE TABLE inbox_effect (id text, body text);
CREATE FUNCTION inbox_consume(ids text[], bodies text[]) RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
  WITH new AS (
    INSERT INTO inbox_effect
    SELECT m.id, m.body FROM unnest(ids, bodies) WITH ORDINALITY m (id, body, ord) JOIN idem_once_many('inbox', ids) USING (ord)
    RETURNING 1)
  SELECT count(*) FROM new;
END;
SELECT inbox_consume('{e1,e2}', '{a,b}'), inbox_consume('{e2,e3,e3}', '{b,c,c}'), inbox_consume('{e1,e2,e3}', '{a,b,c}');
SELECT * FROM inbox_effect ORDER BY id;

-- thousands at once, overlapping
SELECT count(*), count(DISTINCT ord), min(ord), max(ord) FROM idem_once_many('inbox', (SELECT array_agg('k' || n ORDER BY n) FROM generate_series(1, 5000) n));
SELECT count(*), min(ord), max(ord) FROM idem_once_many('inbox', (SELECT array_agg('k' || n ORDER BY n) FROM generate_series(4001, 9000) n));
SELECT count(*) FROM idem_once_many('inbox', (SELECT array_agg('k' || (n % 100 + 1) ORDER BY n) FROM generate_series(1, 10000) n));

-- A batch is inserted directly, which shows by its subtransaction, unless it is small, comes after a savepoint, or the transaction has many of them.
CREATE VIEW inbox_row AS
  SELECT key, xmin::text::bigint <> pg_current_xact_id()::text::bigint % 4294967296 AS directly
  FROM (SELECT xmin, key FROM idempotence.outcome_0 UNION ALL SELECT xmin, key FROM idempotence.outcome_1 UNION ALL SELECT xmin, key FROM idempotence.outcome_2) o;
CREATE FUNCTION inbox_keys(prefix text, first int, last int) RETURNS text[] IMMUTABLE LANGUAGE sql AS
  $$SELECT array_agg(prefix || ' ' || n ORDER BY n) FROM generate_series(first, last) n$$;
BEGIN;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('few', 1, 7));
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('enough', 1, 8));
SELECT directly, count(*), min(key) FROM inbox_row WHERE key ~ '^(few|enough) ' GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('enough', 1, 40));
SELECT directly, count(*) FROM inbox_row WHERE key ~ '^enough ' GROUP BY 1;
SELECT sum((SELECT count(*) FROM idem_once_many('inbox', inbox_keys('batch ' || n, 1, 20)))) FROM generate_series(1, 40) n;
SELECT directly, count(*) FROM inbox_row WHERE key ~ '^batch ' GROUP BY 1 ORDER BY 1;
COMMIT;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('batch 40', 1, 21));
-- A rollback takes it back; what was in the savepoint before it, too.
BEGIN;
SAVEPOINT s;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('back', 1, 20));
ROLLBACK TO s;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('back', 1, 30));
SAVEPOINT t;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('back', 1, 60));
RELEASE t;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('back', 1, 60));
ROLLBACK;
SELECT count(*) FROM idem_once_many('inbox', inbox_keys('back', 1, 60));
-- Rows are as the other way makes them.
SELECT count(DISTINCT (session, status, response, fingerprint, recorded_by)), min(recorded_by::text) = current_user, count(*), count(DISTINCT recorded_at), min(expires_at - recorded_at)
FROM idempotence.outcomes WHERE session = 'inbox' AND request ~ '^(few|enough) ';
-- Keys of all lengths, and of other types.
SELECT count(*) FROM idem_once_many('inbox', (SELECT array_agg(repeat(U&'\+01F680', n)) FROM generate_series(1, 255) n));
SELECT count(*) FROM idem_once_many('inbox', (SELECT array_agg(repeat(U&'\+01F680', n)) FROM generate_series(1, 255) n));
SELECT count(*), sum(request::bigint) FROM idem_once_many('inbox', (SELECT array_agg(n::bigint) FROM generate_series(1000001, 1000020) n));
SELECT count(*) FROM idem_once_many('inbox', (SELECT array_agg(n::text::varchar) FROM generate_series(1000001, 1000021) n));
-- In the select list, and with a limit.
SELECT (idem_once_many('inbox', '{l1,l2}')).*;
SELECT * FROM idem_once_many('inbox', '{l2,l3,l4}') LIMIT 1;
SELECT * FROM idem_once_many('inbox', '{l3,l4,l5}');

-- another inbox has keys of its own
SELECT idem_create_session('inbox 2', inbox => true);
SELECT idem_once('inbox 2', 'm1');
SELECT * FROM idem_once_many('inbox 2', '{m1,m2,m3}');
-- expired: new again, one by one and many, once each, and then not any more
SELECT idem_create_session('inbox 3', ttl => '1 second', inbox => true);
SELECT count(*) FROM idem_once_many('inbox 3', '{m1,m2,m3}');
SELECT pg_sleep(1.01);
SELECT regress_show(idem_lookup('inbox 3', 'm1'));
SELECT idem_alter_session('inbox 3', ttl => '1 hour');
SELECT idem_once('inbox 3', 'm1');
SELECT * FROM idem_once_many('inbox 3', '{m3,m1,m2,m3}');
-- a key that has expired keeps its batch from being inserted directly
SELECT idem_alter_session('inbox 3', ttl => '1 second');
SELECT idem_once('inbox 3', 'x 7');
SELECT pg_sleep(1.01);
SELECT idem_alter_session('inbox 3', ttl => '1 hour');
BEGIN;
SELECT count(*) FROM idem_once_many('inbox 3', inbox_keys('x', 1, 20));
SELECT directly, count(*) FROM inbox_row WHERE key ~ '^x ' GROUP BY 1;
SELECT count(*) FROM idem_once_many('inbox 3', inbox_keys('x', 1, 40));
SELECT directly, count(*) FROM inbox_row WHERE key ~ '^x ' GROUP BY 1 ORDER BY 1;
COMMIT;
SELECT idem_once('inbox 3', 'm1'), idem_once('inbox 3', 'm2'), idem_once('inbox 3', 'm3');
SELECT regress_show(idem_lookup('inbox 3', 'm1'));
SELECT count(*) FROM idempotence.outcomes WHERE session = 'inbox 3' AND request ~ '^m';

-- forgotten by an admin: new again
SELECT idem_forget('inbox 3', 'm1', 'a test');
SELECT idem_once('inbox 3', 'm1'), idem_once('inbox 3', 'm1');
-- dropped and made again: the same keys are known
SELECT idem_drop_session('inbox 3');
SELECT idem_create_session('inbox 3', inbox => true);
SELECT idem_once('inbox 3', 'm1');

-- at the other isolation levels
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_once('inbox', 'r1'), idem_once('inbox', 'r1'), idem_once('inbox', 'm1');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_once('inbox', 'r2'), idem_once('inbox', 'r2'), idem_once('inbox', 'r1');
SELECT * FROM idem_once_many('inbox', '{r1,r3,r3}');
COMMIT;

-- a trigger on the tables of outcomes that notes a message of its own
CREATE TABLE inbox_noted (key text);
CREATE FUNCTION inbox_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.key NOT LIKE 'note of %' AND public.idem_once('inbox', 'note of ' || NEW.key) THEN
    INSERT INTO public.inbox_noted VALUES (NEW.key);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER inbox_note AFTER INSERT ON idempotence.outcome_0 FOR EACH ROW EXECUTE FUNCTION inbox_note();
CREATE TRIGGER inbox_note AFTER INSERT ON idempotence.outcome_1 FOR EACH ROW EXECUTE FUNCTION inbox_note();
CREATE TRIGGER inbox_note AFTER INSERT ON idempotence.outcome_2 FOR EACH ROW EXECUTE FUNCTION inbox_note();
SELECT idem_once('inbox', 't1'), idem_once('inbox', 't1'), idem_once('inbox', 'note of t1');
SELECT * FROM idem_once_many('inbox', '{t1,t2,t3}');
SELECT * FROM inbox_noted ORDER BY 1;
DROP TRIGGER inbox_note ON idempotence.outcome_0;
DROP TRIGGER inbox_note ON idempotence.outcome_1;
DROP TRIGGER inbox_note ON idempotence.outcome_2;
DROP FUNCTION inbox_note;
DROP TABLE inbox_noted;

DROP FUNCTION inbox_consume, inbox_keys;
DROP VIEW inbox_row;
DROP TABLE inbox_effect;
SELECT idem_drop_session('inbox'), idem_drop_session('inbox 2'), idem_drop_session('inbox 3');
