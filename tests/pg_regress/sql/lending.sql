-- Goal: whom a session is lent to may use its requests and see them, and no more; nobody else may.
-- Method: one session, lent, altered, taken back, dropped and made again, by roles with and without the privileges.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_lending_owner;
CREATE ROLE regress_lending_borrower;
CREATE ROLE regress_lending_member IN ROLE regress_lending_borrower;
CREATE ROLE regress_lending_member_without NOINHERIT IN ROLE regress_lending_borrower;
CREATE ROLE regress_lending_other;
CREATE ROLE regress_lending_gone;
CREATE ROLE regress_lending_admin;
SELECT idem_grant(r) FROM unnest('{regress_lending_owner,regress_lending_borrower,regress_lending_member,regress_lending_member_without,regress_lending_other}'::regrole[]) r;
SELECT idem_grant(r, 'monitor') FROM unnest('{regress_lending_borrower,regress_lending_other}'::regrole[]) r;
SELECT idem_grant('regress_lending_admin', 'admin');

-- an owner lends to any role, as GRANT would
SET ROLE regress_lending_owner;
SELECT idem_create_session('lending', ttl => '1 hour', usable_by => 'regress_lending_borrower');
SELECT idem_create_session('lending inbox', inbox => true, usable_by => 'regress_lending_borrower');
SELECT regress_error($$SELECT idem_create_session('lending new', usable_by => '4000000000'::regrole)$$);
SELECT regress_message($$SELECT idem_alter_session('lending', usable_by => '4000000000'::regrole)$$);
-- the loan is one of the options; NULL stands for what there is
SELECT idem_create_session('lending', ttl => '1 hour');
SELECT idem_create_session('lending', ttl => '1 hour', usable_by => 'regress_lending_borrower');
SELECT regress_error($$SELECT idem_create_session('lending', ttl => '1 hour', usable_by => 'regress_lending_other')$$);
SELECT regress_error($$SELECT idem_create_session('lending', ttl => '1 hour', usable_by => '-')$$);
SELECT regress_show(t) FROM idem_run('lending', 'by its owner', 'SELECT 1') t;
RESET ROLE;
SELECT session, owner, usable_by FROM idempotence.sessions WHERE session LIKE 'lending%' ORDER BY session;

-- the borrower, and who has his privileges, use all that is about requests
SET ROLE regress_lending_borrower;
SELECT regress_show(idem_begin('lending', 'by its owner'));
BEGIN;
SELECT regress_show(idem_begin('lending', 'borrowed', payload => '1'));
SELECT idem_record('lending', 'borrowed', '"answer"') IS NOT NULL;
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('lending', 'half'));
SELECT idem_checkpoint('lending', 'half', 'p');
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('lending', 'half'));
SELECT idem_release('lending', 'half');
COMMIT;
SELECT idem_once('lending inbox', 'm'), (SELECT count(*) FROM idem_once_many('lending inbox', '{m,n}'));
SELECT session, request, response, fingerprint IS NOT NULL FROM idempotence.outcomes WHERE session LIKE 'lending%' ORDER BY session, request COLLATE "C";
-- but not what is the owner's
SELECT regress_error($$SELECT idem_alter_session('lending', ttl => '2 hours')$$);
SELECT regress_message($$SELECT idem_alter_session('lending', usable_by => 'regress_lending_other')$$);
SELECT regress_message($$SELECT idem_alter_session('lending', owner => 'regress_lending_borrower')$$);
SELECT regress_message($$SELECT idem_drop_session('lending')$$);
SELECT regress_message($$SELECT idem_create_session('lending', ttl => '1 hour')$$);
SET ROLE regress_lending_member;
SELECT regress_show(idem_lookup('lending', 'borrowed'));
SET ROLE regress_lending_member_without;
SELECT regress_message($$SELECT idem_lookup('lending', 'borrowed')$$);
SET ROLE regress_lending_other;
SELECT regress_error($$SELECT idem_lookup('lending', 'borrowed')$$);
SELECT session, request, response, fingerprint IS NOT NULL FROM idempotence.outcomes WHERE session = 'lending' ORDER BY request COLLATE "C";
RESET ROLE;

-- NULL leaves the loan, another role has it from then on, the role '-' ends it
SET ROLE regress_lending_owner;
SELECT idem_alter_session('lending', require_payload => false);
SET ROLE regress_lending_borrower;
SELECT regress_show(idem_lookup('lending', 'borrowed'));
SET ROLE regress_lending_owner;
SELECT idem_alter_session('lending', usable_by => 'regress_lending_other');
SET ROLE regress_lending_borrower;
SELECT regress_message($$SELECT idem_lookup('lending', 'borrowed')$$);
SET ROLE regress_lending_other;
SELECT regress_show(idem_lookup('lending', 'borrowed'));
-- what was begun under a loan ends under it, and nothing begins after it
BEGIN;
SELECT regress_show(idem_begin('lending', 'begun before'));
RESET ROLE;
SELECT idem_alter_session('lending', usable_by => '-');
SET ROLE regress_lending_other;
SELECT regress_message($$SELECT idem_begin('lending', 'begun after')$$);
SELECT idem_record('lending', 'begun before') IS NOT NULL;
COMMIT;
SELECT regress_message($$SELECT idem_lookup('lending', 'begun before')$$);
RESET ROLE;
SELECT usable_by FROM idempotence.sessions WHERE session = 'lending';

-- dropped and made again: lent as before, or to another role; an admin may bring it back, but not lend it
SELECT idem_alter_session('lending', usable_by => 'regress_lending_borrower');
SET ROLE regress_lending_owner;
SELECT idem_drop_session('lending');
SET ROLE regress_lending_borrower;
SELECT regress_message($$SELECT idem_lookup('lending', 'borrowed')$$);
SELECT regress_error($$SELECT idem_create_session('lending', ttl => '1 hour')$$);
SET ROLE regress_lending_admin;
SELECT regress_message($$SELECT idem_create_session('lending', ttl => '1 hour', usable_by => 'regress_lending_admin')$$);
SELECT idem_create_session('lending', ttl => '1 hour');
SET ROLE regress_lending_borrower;
SELECT regress_show(idem_lookup('lending', 'borrowed'));
SET ROLE regress_lending_owner;
SELECT idem_drop_session('lending');
SELECT idem_create_session('lending', ttl => '1 hour', usable_by => 'regress_lending_gone');
RESET ROLE;
SELECT owner, usable_by FROM idempotence.sessions WHERE session = 'lending';

-- a loan to a role that was dropped ends with the sweep
SELECT idem_revoke('regress_lending_gone');
DROP ROLE regress_lending_gone;
SELECT status, detail LIKE '%lent to a role that was dropped: lending', hint FROM idempotence.health WHERE name = 'owners';
SET client_min_messages = warning;
DELETE FROM idempotence.sweep WHERE step = 'owners';
CALL idem_sweep();
RESET client_min_messages;
SELECT owner, usable_by FROM idempotence.sessions WHERE session = 'lending';
SELECT status, detail FROM idempotence.health WHERE name = 'owners';
-- a client session is its client's alone
SELECT regress_registered('live', idem_register());
SELECT regress_told(regress_message(format('SELECT idem_alter_session(%L, usable_by => %L)', regress_id('live'), 'regress_lending_other')));
SELECT usable_by FROM idempotence.sessions WHERE session = regress_id('live');

SELECT regress_close();
SELECT idem_drop_session('lending'), idem_drop_session('lending inbox');
SELECT idem_revoke(r) FROM unnest('{regress_lending_owner,regress_lending_borrower,regress_lending_member,regress_lending_member_without,regress_lending_other,regress_lending_admin}'::regrole[]) r;
DROP ROLE regress_lending_owner, regress_lending_borrower, regress_lending_member, regress_lending_member_without, regress_lending_other, regress_lending_admin;
