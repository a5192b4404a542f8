-- Goal: whoever owns a session may forget a request of it and run it again in the same transaction, with a reason that the
-- audit keeps; whoever only uses the session may not, nor may an owner forget with a prefix.
-- Method: a final failure, a checkpoint and a message, forgotten by the owner, by a member, and by the role that it is lent to.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_forget_owner;
CREATE ROLE regress_forget_member IN ROLE regress_forget_owner;
CREATE ROLE regress_forget_user;
CREATE ROLE regress_forget_other;
SELECT idem_grant(r::regrole) FROM unnest('{regress_forget_owner,regress_forget_member,regress_forget_user,regress_forget_other}'::text[]) r;
DELETE FROM idempotence.audit;
SET ROLE regress_forget_owner;
SELECT idem_create_session('forget own', usable_by => 'regress_forget_user'), idem_create_session('forget own inbox', inbox => true);
BEGIN;
SELECT regress_show(idem_begin('forget own', 'k', payload => '1')), idem_record('forget own', 'k', '"refused"', failed => true) > now();
SELECT regress_show(idem_begin('forget own', 'steps')), idem_checkpoint('forget own', 'steps', 'half way');
COMMIT;
SELECT idem_once('forget own inbox', 'm');

-- lent, or nobody's business
SET ROLE regress_forget_user;
SELECT regress_show(idem_lookup('forget own', 'k'));
SELECT regress_error($$SELECT idem_forget('forget own', 'k', 'again')$$);
SET ROLE regress_forget_other;
SELECT regress_message($$SELECT idem_forget('forget own', 'k', 'again')$$), regress_message($$SELECT idem_forget('forget own', 'never', 'again')$$);
SELECT regress_message($$SELECT idem_forget('forget nothing', 'k', 'again')$$);
-- a reason is asked for, and a prefix is an admin's
SET ROLE regress_forget_owner;
SELECT regress_message($$SELECT idem_forget('forget own', 'k', ' ')$$), regress_message($$SELECT idem_forget_prefix('forget own', 'k', 'again')$$);

-- forgotten and run again, with another payload, in one transaction; rolled back, all is as it was
SET ROLE regress_forget_member;
BEGIN;
SELECT idem_forget('forget own', 'k', 'the card was mended');
SELECT regress_show(idem_begin('forget own', 'k', payload => '2'));
ROLLBACK;
SELECT regress_show(idem_begin('forget own', 'k', payload => '1'));
BEGIN;
SELECT idem_forget('forget own', 'k', 'the card was mended'), idem_forget('forget own', 'steps', 'from the beginning'), idem_forget('forget own inbox', 'm', 'once more');
SELECT regress_show(idem_begin('forget own', 'k', payload => '2')), regress_show(idem_begin('forget own', 'steps')), idem_once('forget own inbox', 'm');
SELECT idem_record('forget own', 'k', '"paid"') > now(), idem_record('forget own', 'steps') > now();
COMMIT;
SELECT regress_show(idem_begin('forget own', 'k', payload => '2'));
-- begun in this transaction, it is released and not forgotten
BEGIN;
SELECT regress_show(idem_begin('forget own', 'new'));
SELECT regress_message($$SELECT idem_forget('forget own', 'new', 'again')$$);
ROLLBACK;
-- in a session that was dropped, too, where nobody else learns of it
SELECT idem_drop_session('forget own');
SELECT idem_forget('forget own', 'k', 'at the end');
SET ROLE regress_forget_user;
SELECT regress_message($$SELECT idem_forget('forget own', 'steps', 'again')$$);
RESET ROLE;
SELECT by, login = session_user AS login, action, session, request, reason, found FROM idempotence.audit WHERE action = 'forget' ORDER BY at;

SELECT idem_drop_session('forget own inbox');
SELECT idem_revoke(r::regrole) FROM unnest('{regress_forget_owner,regress_forget_member,regress_forget_user,regress_forget_other}'::text[]) r;
DROP ROLE regress_forget_member, regress_forget_owner, regress_forget_user, regress_forget_other;
UPDATE idempotence.session SET owner = current_user::regrole, usable_by = NULL WHERE name LIKE 'forget own%';
DELETE FROM idempotence.audit;
