-- This script runs last, since it needs every object.

-- PUBLIC may execute no function of this extension.
DO $$
DECLARE
  function pg_catalog.regprocedure;
BEGIN
  FOR function IN SELECT f.function FROM idempotence.function_level f LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', function);
  END LOOP;
END
$$;

-- Nobody makes a column of a table's row type, which would keep the table from being altered. What a script revokes is noted
-- for pg_dump, which dumps no right on such a type, and would warn of each note.
DO $$
DECLARE
  row_type pg_catalog.regtype;
BEGIN
  FOR row_type IN SELECT c.reltype FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
                  WHERE n.nspname OPERATOR(pg_catalog.=) 'idempotence' AND c.relkind OPERATOR(pg_catalog.=) 'r' LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON TYPE %s FROM PUBLIC', row_type);
    DELETE FROM pg_catalog.pg_init_privs p WHERE p.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass AND p.objoid OPERATOR(pg_catalog.=) row_type::pg_catalog.oid;
  END LOOP;
END
$$;

-- The comments that psql shows with \df+, \dT+, \d+ and \dn+.

-- The schema gets a comment only if this extension made it. A schema that was there before may have its owner's own.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_depend d
             JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
             WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence'
               AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
               AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
               AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence')) THEN
    COMMENT ON SCHEMA idempotence IS 'tables and views of extension idempotence';
  END IF;
END
$$;

COMMENT ON TYPE idem_ticket IS 'what is known of a request: the answer of idem_begin, idem_settle, idem_lookup and idem_run';
COMMENT ON COLUMN idem_ticket.status IS 'started: execute it; taken_over: look whether its effect happened, then go on; succeeded, failed, cancelled: it has its outcome; in_progress: another transaction is at work on it, or somebody has a lease of it; discarded: it was done or skipped, and its outcome is no longer kept; suspended: it stopped at a checkpoint; unknown: nothing is kept; not_here: nothing is on this standby yet';
COMMENT ON COLUMN idem_ticket.replayed IS 'true where the outcome is handed out instead of executing again';
COMMENT ON COLUMN idem_ticket.response IS 'the response that was recorded with the outcome';
COMMENT ON COLUMN idem_ticket.token IS 'what the holder of a lease completes the request with; null without a lease';
COMMENT ON COLUMN idem_ticket.attempt IS '1 with started, one more for each time that it was taken over; with cancelled, how many attempts there were; else null';
COMMENT ON COLUMN idem_ticket.point IS 'the point of the last checkpoint: where to go on';
COMMENT ON COLUMN idem_ticket.state IS 'the state that was saved with the checkpoint';
COMMENT ON COLUMN idem_ticket.recorded_at IS 'when the outcome was recorded';
COMMENT ON COLUMN idem_ticket.expires_at IS 'when the outcome expires; from then on the request counts as new; null: a client session''s, which keeps the newest; without an outcome, when the lease runs out';

COMMENT ON TYPE idem_session IS 'a client session: the answer of idem_register';
COMMENT ON COLUMN idem_session.session IS 'its name, to be given with each request';
COMMENT ON COLUMN idem_session.resumed IS 'whether it was there before';
COMMENT ON COLUMN idem_session.window_size IS 'how many replies of each stream it keeps, and how many requests of one can be in flight';
COMMENT ON COLUMN idem_session.timeout IS 'the longest silence that it outlasts';
COMMENT ON COLUMN idem_session.expires_at IS 'when it ends at the earliest, without another sign of life';
COMMENT ON COLUMN idem_session.next_number IS 'where to go on numbering; 1 in a new session';

COMMENT ON TYPE idem_position IS 'where a stream of a client session stands: the answer of idem_position';
COMMENT ON COLUMN idem_position.last_number IS 'the greatest number that has an outcome; 0: none';
COMMENT ON COLUMN idem_position.next_number IS 'where to go on numbering; in strict ordering the only number that is accepted';
COMMENT ON COLUMN idem_position.acked IS 'all numbers up to here are answered or given up; 0: nothing was said';
COMMENT ON COLUMN idem_position.allocated IS 'all numbers up to here were handed out by idem_allocate; 0: none';

-- Requests. All overloads of a function have the same meaning.
COMMENT ON FUNCTION idem_begin(text, text, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_begin(text, bigint, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_begin(text, uuid, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_record(text, text, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_record(text, bigint, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_record(text, uuid, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_checkpoint(text, text, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
COMMENT ON FUNCTION idem_checkpoint(text, bigint, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
COMMENT ON FUNCTION idem_checkpoint(text, uuid, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
COMMENT ON FUNCTION idem_claim(text, text, jsonb, interval, text, bigint, bigint) IS
  'take the claim to a request, or raise an error: for programs that need no answer, as in a pipeline';
COMMENT ON FUNCTION idem_claim(text, bigint, jsonb, interval, text, bigint, bigint) IS
  'take the claim to a request, or raise an error: for programs that need no answer, as in a pipeline';
COMMENT ON FUNCTION idem_claim(text, uuid, jsonb, interval, text, bigint, bigint) IS
  'take the claim to a request, or raise an error: for programs that need no answer, as in a pipeline';
COMMENT ON FUNCTION idem_extend(text, text, bigint, interval, text) IS
  'extend the lease of a request; gives when it runs out now';
COMMENT ON FUNCTION idem_extend(text, bigint, bigint, interval, text) IS
  'extend the lease of a request; gives when it runs out now';
COMMENT ON FUNCTION idem_extend(text, uuid, bigint, interval, text) IS
  'extend the lease of a request; gives when it runs out now';
COMMENT ON FUNCTION idem_settle(text, text, interval, text, jsonb) IS
  'a binding verdict on a request whose answer was lost: gives its outcome, or records that it is cancelled and never executed';
COMMENT ON FUNCTION idem_settle(text, bigint, interval, text, jsonb) IS
  'a binding verdict on a request whose answer was lost: gives its outcome, or records that it is cancelled and never executed';
COMMENT ON FUNCTION idem_settle(text, uuid, interval, text, jsonb) IS
  'a binding verdict on a request whose answer was lost: gives its outcome, or records that it is cancelled and never executed';
COMMENT ON FUNCTION idem_release(text, text, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_release(text, bigint, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_release(text, uuid, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_explain(text, text, text) IS
  'all that is known of a request: who is at work on it, its outcome, what is unfinished, its repairs, what a begin would answer and why, what to do next; never a payload, state or response';
COMMENT ON FUNCTION idem_explain(text, bigint, text) IS
  'all that is known of a request: who is at work on it, its outcome, what is unfinished, its repairs, what a begin would answer and why, what to do next; never a payload, state or response';
COMMENT ON FUNCTION idem_explain(text, uuid, text) IS
  'all that is known of a request: who is at work on it, its outcome, what is unfinished, its repairs, what a begin would answer and why, what to do next; never a payload, state or response';
COMMENT ON FUNCTION idem_outcomes(text, text, text, timestamptz, timestamptz, integer) IS
  'the outcomes of a session, that which was recorded last first: those whose key begins with prefix, that have this status, that were recorded since and before; at most so many';
COMMENT ON FUNCTION idem_lookup(text, text, text, interval) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_lookup(text, bigint, text, interval) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_lookup(text, uuid, text, interval) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_once(text, text) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once(text, bigint) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once(text, uuid) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once_many(text, anycompatiblearray) IS
  'note many requests in an inbox; gives those seen for the first time, once each, with their place in the array';
COMMENT ON FUNCTION idem_run(text, text, text, jsonb, text, interval, interval, text) IS
  'begin a request, execute a command with args as $1, record the first column of its row; gives the outcome';

-- Sessions.
COMMENT ON FUNCTION idem_create_session(text, interval, boolean, boolean, boolean, regrole, regrole, integer, text, text) IS
  'make a standing session: a named, owned series of requests with one policy';
COMMENT ON FUNCTION idem_alter_session(text, interval, boolean, regrole, regrole, integer, text) IS
  'change ttl, require_payload, owner or max_attempts of a session, lend it, or bind it to a node; null leaves as it is';
COMMENT ON FUNCTION idem_node() IS 'the name of this server: as the setting idempotence.node says, or made from the system''s identifier';
COMMENT ON FUNCTION idem_create_journal(text, text, regtype) IS
  'make a table that keeps the requests of sessions, to lie beside a tenant''s rows; or check that a table can';
COMMENT ON FUNCTION idem_drop_session(text) IS
  'drop a session; its outcomes stay until they expire, and are found again if it is made again';

-- Client sessions.
COMMENT ON FUNCTION idem_register(text, interval, integer, text, boolean, uuid, interval) IS
  'register a client: gives it a session, in which its requests are numbered; fences or resumes the former session of the same client';
COMMENT ON FUNCTION idem_heartbeat(text) IS
  'give a sign of life of a client session, as every request does too; gives when it would end now';
COMMENT ON FUNCTION idem_ack(text, bigint, text) IS
  'say that all numbers of a stream up to this one, inclusive, are answered or given up';
COMMENT ON FUNCTION idem_allocate(text, integer, text) IS
  'have n numbers of a stream handed out; gives the first';
COMMENT ON FUNCTION idem_position(text, text) IS
  'look up where a stream of a client session stands';
COMMENT ON FUNCTION idem_close(text) IS
  'end a client session; gives whether it was still alive';

-- Identifiers.
COMMENT ON FUNCTION idem_generate_id() IS 'give a fresh UUIDv7, to be a key';
COMMENT ON FUNCTION idem_generate_ids(integer) IS 'give n fresh UUIDv7 in rising order';
COMMENT ON FUNCTION idem_key(jsonb) IS
  'derive a key of 32 hexadecimal digits from content; equal jsonb gives the same key';
COMMENT ON FUNCTION idem_fingerprint(jsonb) IS 'give the fingerprint that a payload is compared by';

-- Rights and repair.
COMMENT ON FUNCTION idem_grant(regrole, text) IS
  'give a role what a level needs: user (requests and sessions), monitor (views), admin (both, and repair)';
COMMENT ON FUNCTION idem_revoke(regrole) IS 'take away what idem_grant gave a role, all levels';
COMMENT ON FUNCTION idem_forget(text, text, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_forget(text, bigint, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_forget(text, uuid, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_redact(text, text, text, text) IS
  'take the response and the state of a request away and keep that it was done, so that it is not executed again; gives whether there was either';
COMMENT ON FUNCTION idem_redact(text, bigint, text, text) IS
  'take the response and the state of a request away and keep that it was done, so that it is not executed again; gives whether there was either';
COMMENT ON FUNCTION idem_redact(text, uuid, text, text) IS
  'take the response and the state of a request away and keep that it was done, so that it is not executed again; gives whether there was either';
COMMENT ON FUNCTION idem_forget_prefix(text, text, text, integer) IS
  'repair: idem_forget for the requests whose keys begin with a prefix, a bounded number in a call; gives how many, 0 when none is left';
COMMENT ON FUNCTION idem_redact_prefix(text, text, text, integer) IS
  'idem_redact for the requests whose keys begin with a prefix, a bounded number in a call; gives how many, 0 when none is left';
COMMENT ON FUNCTION idem_force_release_prefix(text, text, text, boolean, integer) IS
  'repair: idem_force_release for the leases of requests whose keys begin with a prefix, those that ran out or those that have not, a bounded number in a call; gives how many, 0 when none is left';
COMMENT ON FUNCTION idem_purge_audit(timestamptz, text) IS
  'delete the rows of the audit from before a moment; gives how many';
COMMENT ON FUNCTION idem_import(text, text, text) IS
  'take outcomes over from a query into a standing session; gives how many were imported, were there already, and have expired';
COMMENT ON FUNCTION idem_export(text, text, text) IS
  'give what is kept of the requests of a dropped session, for idem_import on the server where the session goes on';
COMMENT ON FUNCTION idem_force_release(text, text, text, text, boolean) IS
  'repair: take away a lease that ran out, as if its request had never been begun with it, or end one that has not run out; gives whether there was one';
COMMENT ON FUNCTION idem_force_release(text, bigint, text, text, boolean) IS
  'repair: take away a lease that ran out, as if its request had never been begun with it, or end one that has not run out; gives whether there was one';
COMMENT ON FUNCTION idem_force_release(text, uuid, text, text, boolean) IS
  'repair: take away a lease that ran out, as if its request had never been begun with it, or end one that has not run out; gives whether there was one';
COMMENT ON FUNCTION idem_force_record(text, text, text, jsonb, boolean, text) IS
  'repair: record the outcome of a request that is unfinished; gives when it expires';
COMMENT ON FUNCTION idem_force_record(text, bigint, text, jsonb, boolean, text) IS
  'repair: record the outcome of a request that is unfinished; gives when it expires';
COMMENT ON FUNCTION idem_force_record(text, uuid, text, jsonb, boolean, text) IS
  'repair: record the outcome of a request that is unfinished; gives when it expires';
COMMENT ON FUNCTION idem_set_persistence(text, text) IS
  'make claims (leases) or sessions (client sessions at work) logged or unlogged; gives whether that has changed';
COMMENT ON FUNCTION idem_accept_restore(text) IS
  'repair: give up what a restore brought without its session, so that new sessions can be made; gives whether there was anything to decide';

-- Sweeping.
COMMENT ON PROCEDURE idem_sweep() IS
  'sweep this database once, as the background worker does: empty and turn segments, delete what is not kept any longer';

-- Parts of functions and views, not to be called by users.
COMMENT ON FUNCTION idempotence.leave_out_nulls(internal) IS 'internal to idem_begin: makes the planner leave out the arguments that a call leaves out';
COMMENT ON FUNCTION idempotence.import_begin(text, text, text) IS 'internal to idem_import: begins an import, gives the statement that imports';
COMMENT ON FUNCTION idempotence.import_row(bigint, text, jsonb, boolean, timestamptz, timestamptz, jsonb, uuid, text, bigint, integer, timestamptz, timestamptz, text, jsonb) IS 'internal to idem_import: imports a row; 0: imported, 1: there already, 2: expired';
COMMENT ON FUNCTION idempotence.import_end() IS 'internal to idem_import: ends the import and notes it';
COMMENT ON FUNCTION idempotence.at_work() IS 'internal to the view sessions: the client sessions at work that the caller may see; none on a standby';
COMMENT ON FUNCTION idempotence.at_work_by_role() IS 'internal to the view health: how many client sessions each role has at work, and how many of them are silent for longer than their timeout; none on a standby';
COMMENT ON FUNCTION idempotence.up_since() IS 'internal to the views sessions and health: when the server came up; no session counts as silent from before';
COMMENT ON FUNCTION idempotence.holders(oid[], text[]) IS 'internal to the view segments: who else holds a lock of one of these modes, null: of any, on one of these relations';
COMMENT ON FUNCTION idempotence.advisory_holders(integer) IS 'internal to the view segments: who else holds an advisory lock with this objsubid in this database';
COMMENT ON FUNCTION idempotence.retention() IS 'the setting idempotence.retention, for the view sessions';
COMMENT ON FUNCTION idempotence.note_restored() IS 'internal: trigger that notes what a restore puts into segments and sessions, and takes back what it brings twice';
COMMENT ON FUNCTION idempotence.forget_cached() IS 'internal: backends read sessions and secret again after SQL wrote them';
COMMENT ON FUNCTION idempotence.sweep_step(text) IS 'internal to idem_sweep: a step, or a batch of it; whether there is more to do, null when another sweep is at work';
COMMENT ON FUNCTION idempotence.note_grant(regrole, text) IS 'internal to idem_grant and idem_revoke: notes what was granted, null: that it was taken away';
COMMENT ON FUNCTION idempotence.note_sweep() IS 'internal to idem_sweep: notes that a sweep by hand has ended';
COMMENT ON FUNCTION idempotence.unswept() IS 'internal to health: why journals cannot be swept';
COMMENT ON FUNCTION idempotence.legible(text) IS 'a text with the names of users in it, such that it fools no reader';
COMMENT ON FUNCTION idempotence.table_columns() IS 'for the view health: the tables that requests need, and with how many columns they were made';
COMMENT ON FUNCTION idempotence.locked_by() IS 'who has locked a table of the extension or waits to, in words; null: nobody';
COMMENT ON FUNCTION idempotence.last_sweep() IS 'for the view health: when this database was swept last';
COMMENT ON FUNCTION idempotence.swept_instead() IS 'internal to the view health: when this database was swept last by hand while no worker came';
COMMENT ON FUNCTION idempotence.launcher() IS 'for the view health: the process of the launcher; 0: it does not run, null: the library is not preloaded';
COMMENT ON FUNCTION idempotence.is_visited() IS 'for the view health: whether the library is preloaded and the setting idempotence.databases names this database';
COMMENT ON FUNCTION idempotence.max_sessions_per_role() IS 'the setting idempotence.max_sessions_per_role, for the view health';
COMMENT ON FUNCTION idempotence.visits() IS 'internal to the view health: the databases that the worker has swept or could not sweep since the server came up, when last, and with what error';
COMMENT ON FUNCTION idempotence.databases() IS 'internal to the view health: the names in the setting idempotence.databases';
COMMENT ON FUNCTION idempotence.checks() IS 'for the view health: all checks, each looked at by itself';
COMMENT ON FUNCTION idempotence.look_at(text) IS 'internal to the view health: what one check finds';
COMMENT ON FUNCTION idempotence.setting(text) IS 'internal to the view health: the value of a setting, in its base unit; null: there is no such setting';
COMMENT ON FUNCTION idempotence.milliseconds(text) IS 'internal to the view health: what a text means as the value of a setting of time; null: nothing';
COMMENT ON FUNCTION idempotence.restarts(boolean) IS 'internal to the view health: how often the launcher was started anew, lately (within the last hour) or since the server came up; null: the library is not preloaded';
COMMENT ON FUNCTION idempotence.commits_wait() IS 'internal to the view health: whether commits wait for synchronous standbys, as the checkpointer has read synchronous_standby_names';
COMMENT ON FUNCTION idempotence.deadlocks() IS 'internal to the view health: how many waits for locks of this extension ended in a deadlock within the last hour; null: the library is not preloaded';
COMMENT ON FUNCTION idempotence.clock_jump() IS 'internal to the view health: when the clock was set last; null: that is not known';
COMMENT ON FUNCTION idempotence.clock_jump_by() IS 'internal to the view health: by how much the clock was set forward, or back if it is negative';
COMMENT ON FUNCTION idempotence.lock_table_size() IS 'internal to the view health: the number of locks that the lock table is made for';
COMMENT ON FUNCTION idempotence.free_space() IS 'internal to the view health: the bytes that are free where outcomes are recorded; null: the system does not tell';
COMMENT ON FUNCTION idempotence.coordinator() IS 'internal to the view health: the library of a commit coordinator that can be asked for a two-phase commit; null: none is loaded';
COMMENT ON FUNCTION idempotence.digest_fits(uuid, uuid, text) IS 'internal to the view health: whether the key in use makes this digest of session and request';
COMMENT ON FUNCTION idempotence.last_pages(text, bigint) IS 'internal to the view health: the beginning of the last pages of a table';
COMMENT ON FUNCTION idempotence.refuse_parallel_query(text) IS 'internal: raises an error where the named function was called during a parallel query';
COMMENT ON FUNCTION idempotence.look_whether_ready() IS 'internal to idem_ready: raises the error that every request would meet';
COMMENT ON FUNCTION idem_ready() IS 'whether a request can be begun here and now; for readiness probes';

-- Views.
COMMENT ON VIEW idempotence.sessions IS 'the standing sessions, without the dropped ones, and the client sessions, with the ended ones that are still known';
COMMENT ON COLUMN idempotence.sessions.session IS 'its name; that of a client session is its id and, after an @, the node where it was registered';
COMMENT ON COLUMN idempotence.sessions.owner IS 'the role that it belongs to: whoever has the privileges of this role may use, change, lend and drop it';
COMMENT ON COLUMN idempotence.sessions.kind IS 'standing; inbox: that one only deduplicates; or client';
COMMENT ON COLUMN idempotence.sessions.ttl IS 'how long its outcomes live; the setting idempotence.retention where it names none; null: a client session';
COMMENT ON COLUMN idempotence.sessions.require_payload IS 'whether each request must come with a payload';
COMMENT ON COLUMN idempotence.sessions.time_keys IS 'whether its keys must be UUIDv7, so that a key that is too old is refused';
COMMENT ON COLUMN idempotence.sessions.created_at IS 'when it was first made, or registered';
COMMENT ON COLUMN idempotence.sessions.client IS 'the name that its client registered under';
COMMENT ON COLUMN idempotence.sessions.ordering IS 'of a client session''s numbers: any or strict';
COMMENT ON COLUMN idempotence.sessions.window_size IS 'how many replies of each stream a client session keeps';
COMMENT ON COLUMN idempotence.sessions.timeout IS 'the longest silence that a client session outlasts';
COMMENT ON COLUMN idempotence.sessions.saved IS 'whether it survives a crash: a client session does from its first outcome on';
COMMENT ON COLUMN idempotence.sessions.last_seen IS 'a client session''s last sign of life; null: not at work, as after a crash until it is used again';
COMMENT ON COLUMN idempotence.sessions.expires_at IS 'when a client session ends at the earliest, without another sign of life';
COMMENT ON COLUMN idempotence.sessions.ended IS 'how a client session ended: closed, expired or fenced';
COMMENT ON COLUMN idempotence.sessions.ended_at IS 'when a client session ended';
COMMENT ON COLUMN idempotence.sessions.usable_by IS 'the role that a standing session is lent to: whoever has the privileges of this role may use it too; null: lent to nobody, or a client session';
COMMENT ON COLUMN idempotence.sessions.max_attempts IS 'after how many attempts a request whose lease runs out is given up; null: never';
COMMENT ON COLUMN idempotence.sessions.node IS 'the node that a standing session is bound to, null: none; the node where a client session was registered';
COMMENT ON COLUMN idempotence.sessions.journal IS 'the table that keeps its requests; null: the extension does';

COMMENT ON VIEW idempotence.outcomes IS 'the outcomes that have not expired, and the replies of client sessions';
COMMENT ON COLUMN idempotence.outcomes.session IS 'the session''s name';
COMMENT ON COLUMN idempotence.outcomes.request IS 'the request''s key or number';
COMMENT ON COLUMN idempotence.outcomes.status IS 'succeeded, failed, or cancelled: settled and never executed';
COMMENT ON COLUMN idempotence.outcomes.response IS 'the response, to those who may use the session; null to others';
COMMENT ON COLUMN idempotence.outcomes.response_bytes IS 'the size of the response as stored, in bytes';
COMMENT ON COLUMN idempotence.outcomes.fingerprint IS 'of the payload; null where none was given, and to those who may not use the session';
COMMENT ON COLUMN idempotence.outcomes.recorded_by IS 'the role that recorded it';
COMMENT ON COLUMN idempotence.outcomes.recorded_at IS 'when it was recorded';
COMMENT ON COLUMN idempotence.outcomes.expires_at IS 'when it expires; null: a reply, which is kept until it is overwritten';
COMMENT ON COLUMN idempotence.outcomes.segment IS 'N of the table outcome_N that it is in; null: it is in outcome_long, or is a reply of a client session';
COMMENT ON COLUMN idempotence.outcomes.stream IS 'the stream of a numbered request';
COMMENT ON COLUMN idempotence.outcomes.last IS 'the last number of a numbered request';

COMMENT ON VIEW idempotence.prepared IS 'internal to segments and health: the prepared transactions of this database';
COMMENT ON COLUMN idempotence.prepared.virtualtransaction IS 'what pg_locks calls it';
COMMENT ON COLUMN idempotence.prepared.gid IS 'what COMMIT PREPARED calls it';
COMMENT ON COLUMN idempotence.prepared.prepared IS 'since when';
COMMENT ON COLUMN idempotence.prepared.owner IS 'the role that prepared it';

COMMENT ON VIEW idempotence.locks IS 'internal to segments: the locks that others hold or wait for in this database';
COMMENT ON COLUMN idempotence.locks.locktype IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.relation IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.objsubid IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.mode IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.virtualtransaction IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.granted IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.waitstart IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.locks.since IS 'since when its transaction is open, or prepared';
COMMENT ON COLUMN idempotence.locks.who IS 'who holds it or waits for it, in words';
COMMENT ON VIEW idempotence.locked IS 'internal to health: the tables of the extension that are locked against writers, or about to be';
COMMENT ON COLUMN idempotence.locked.since IS 'since when the transaction that locks it is open or prepared, or has waited to lock it';
COMMENT ON COLUMN idempotence.locked.told IS 'which table, and who has locked it or waits to lock it, in words';
COMMENT ON COLUMN idempotence.locked.behind IS 'for whom that transaction waits itself, in words';
COMMENT ON COLUMN idempotence.locked.waiters IS 'how many calls wait for the table, null: none needs it';

COMMENT ON VIEW idempotence.missing IS 'internal to health and to the making of sessions: the tables that a restore has left out';
COMMENT ON COLUMN idempotence.missing.missing IS 'their names; null: none';
COMMENT ON COLUMN idempotence.missing.beside IS 'the names of those without which requests are answered all the same; null: none';

COMMENT ON FUNCTION idempotence.stats() IS 'internal to the view stats';
COMMENT ON VIEW idempotence.stats IS 'what was counted, a line for each standing session and for the client sessions of each role; needs the library preloaded';
COMMENT ON COLUMN idempotence.stats.session IS 'the standing session; null for the client sessions of a role';
COMMENT ON COLUMN idempotence.stats.owner IS 'the owner of the session or of the client sessions; null: all that has no line of its own any more';
COMMENT ON COLUMN idempotence.stats.kind IS 'standing, inbox, client: all client sessions of the owner, or other: sessions whose line gave way to another, or that are forgotten';
COMMENT ON COLUMN idempotence.stats.started IS 'begins and claims that gave the caller the request to execute, from the beginning or from a checkpoint. Like all counters it has calls that were answered, whatever became of their transactions';
COMMENT ON COLUMN idempotence.stats.taken_over IS 'begins that gave the caller a request whose former holder''s lease had run out; not counted in started';
COMMENT ON COLUMN idempotence.stats.replayed IS 'begins, settles and claims (ID011) that were answered with an outcome recorded before; in an inbox keys that were seen before, also earlier in the same call. A lookup, and a record repeated with its token, are not counted';
COMMENT ON COLUMN idempotence.stats.recorded IS 'outcomes recorded as succeeded, by a repair too, and also if their transaction was rolled back; in an inbox keys seen for the first time';
COMMENT ON COLUMN idempotence.stats.failed IS 'outcomes recorded as failed; those given up after too many attempts included, unless a claim found that, which takes it back';
COMMENT ON COLUMN idempotence.stats.cancelled IS 'requests that a settle has recorded as never to be executed, or found in a client session that has ended';
COMMENT ON COLUMN idempotence.stats.released IS 'requests given up by their holder';
COMMENT ON COLUMN idempotence.stats.in_progress IS 'begins, settles and claims (55P03) that were told that another holder has the request';
COMMENT ON COLUMN idempotence.stats.mismatched IS 'ID001 of a call on a request: it has another payload';
COMMENT ON COLUMN idempotence.stats.discarded IS 'ID003 of a call on a request: the answer is no longer kept';
COMMENT ON COLUMN idempotence.stats.fenced IS 'ID005 of a call on a request: the caller was superseded. ID005 of calls on a client session alone, such as idem_heartbeat, is not counted';
COMMENT ON COLUMN idempotence.stats.out_of_sequence IS 'ID006 of a call on a request: the number comes too early or overlaps';
COMMENT ON COLUMN idempotence.stats.unrecorded IS 'requests begun and not recorded, each one for which a commit was refused (ID008) or warned of; nothing if idempotence.unrecorded is off';
COMMENT ON COLUMN idempotence.stats.waits IS 'calls that waited for a transaction or a lease that has the request, each once, from when the wait begins and however it ends';
COMMENT ON COLUMN idempotence.stats.wait_ms IS 'how long they waited, in milliseconds. A backend that is terminated while it waits loses the length of that wait';
COMMENT ON COLUMN idempotence.stats.since IS 'since when the line counts';
COMMENT ON FUNCTION idempotence.error_counts() IS 'how many errors of each SQLSTATE of class ID were raised in this database, since the counters of stats began';
COMMENT ON FUNCTION idem_stats_reset() IS 'sets the counters of this database to 0; gives the moment';
COMMENT ON FUNCTION idempotence.errors() IS 'internal to the view errors';
COMMENT ON VIEW idempotence.errors IS 'the newest errors of class ID, the newest first; needs the library preloaded';
COMMENT ON COLUMN idempotence.errors.at IS 'when it was raised';
COMMENT ON COLUMN idempotence.errors.session IS 'the session that it tells of';
COMMENT ON COLUMN idempotence.errors.stream IS 'the stream of the request';
COMMENT ON COLUMN idempotence.errors.request IS 'the request that it tells of';
COMMENT ON COLUMN idempotence.errors.role IS 'the role that was current';
COMMENT ON COLUMN idempotence.errors.sqlstate IS 'its SQLSTATE';
COMMENT ON COLUMN idempotence.errors.application IS 'the application_name';
COMMENT ON COLUMN idempotence.errors.pid IS 'the process';
COMMENT ON FUNCTION idempotence.held_requests() IS 'internal to the view in_flight';
COMMENT ON VIEW idempotence.request_locks IS 'internal to the view in_flight: the locks of requests';
COMMENT ON COLUMN idempotence.request_locks.classid IS 'half of the lock''s id';
COMMENT ON COLUMN idempotence.request_locks.objid IS 'the other half';
COMMENT ON COLUMN idempotence.request_locks.waiters IS 'how many wait for it';
COMMENT ON COLUMN idempotence.request_locks.waited_for_since IS 'since when the first of them waits';
COMMENT ON COLUMN idempotence.request_locks.prepared IS 'the gid of the prepared transaction that has it';
COMMENT ON COLUMN idempotence.request_locks.prepared_at IS 'when that was prepared';
COMMENT ON COLUMN idempotence.request_locks.prepared_by IS 'the role that prepared it';
COMMENT ON VIEW idempotence.in_flight IS 'requests that transactions hold now; needs the library preloaded';
COMMENT ON COLUMN idempotence.in_flight.session IS 'the session';
COMMENT ON COLUMN idempotence.in_flight.stream IS 'the stream; empty: a key, or the session''s own numbering';
COMMENT ON COLUMN idempotence.in_flight.request IS 'the key or number; null: there was no room for the name';
COMMENT ON COLUMN idempotence.in_flight.pid IS 'the process that holds it; null: a prepared transaction does';
COMMENT ON COLUMN idempotence.in_flight.role IS 'the role that was current when it was begun';
COMMENT ON COLUMN idempotence.in_flight.application IS 'the application_name of the holder';
COMMENT ON COLUMN idempotence.in_flight.client_addr IS 'the address of the holder''s client; null: a local socket';
COMMENT ON COLUMN idempotence.in_flight.since IS 'when it was begun';
COMMENT ON COLUMN idempotence.in_flight.state IS 'begun; saved: it has a checkpoint or a lease; recorded: it is done at the commit; released: given up';
COMMENT ON COLUMN idempotence.in_flight.waiters IS 'how many processes wait for it';
COMMENT ON COLUMN idempotence.in_flight.longest_wait IS 'how long the first of them has been waiting';
COMMENT ON COLUMN idempotence.in_flight.prepared IS 'the gid of the prepared transaction that holds it';
COMMENT ON COLUMN idempotence.in_flight.requests IS '1; in a row without names: how many more requests the transaction holds';
COMMENT ON COLUMN idempotence.in_flight.backend_state IS 'what the holder does, as state in pg_stat_activity';
COMMENT ON COLUMN idempotence.in_flight.wait_event IS 'what the holder waits for, as type/event; null: for nothing';
COMMENT ON COLUMN idempotence.in_flight.blocked_by IS 'the process at the root of what the holder waits for; 0: a prepared transaction';
COMMENT ON COLUMN idempotence.in_flight.blocked_by_prepared IS 'the gid of the prepared transaction at the root of what the holder waits for';
COMMENT ON FUNCTION idempotence.root_blocker(integer) IS 'internal to in_flight, health and idem_explain: the process that holds up another one, and waits for no lock itself; 0: a prepared transaction, and its gid';
COMMENT ON VIEW idempotence.shown_at_work IS 'internal to at_work(): the client sessions at work that the reader may see; of others than monitors, those that the reader owns';
COMMENT ON COLUMN idempotence.shown_at_work.id IS 'its id';
COMMENT ON COLUMN idempotence.shown_at_work.created_at IS 'when it was registered';
COMMENT ON COLUMN idempotence.shown_at_work.last_seen IS 'its last sign of life';
COMMENT ON COLUMN idempotence.shown_at_work.owner IS 'the role that registered it';
COMMENT ON COLUMN idempotence.shown_at_work.window_size IS 'how many replies of each stream it keeps';
COMMENT ON COLUMN idempotence.shown_at_work.ordering IS 'of its numbers: a (any) or s (strict)';
COMMENT ON COLUMN idempotence.shown_at_work.request_id IS 'the id of its registration';
COMMENT ON COLUMN idempotence.shown_at_work.timeout IS 'the longest silence that it outlasts';
COMMENT ON COLUMN idempotence.shown_at_work.client IS 'the name that its client registered under';
COMMENT ON COLUMN idempotence.shown_at_work.node IS 'the node where it was registered';

COMMENT ON VIEW idempotence.shown_leases IS 'internal to leases(): the leases that the reader may see; of others than monitors, those of sessions that the reader may use';
COMMENT ON COLUMN idempotence.shown_leases.session IS 'the id of the session';
COMMENT ON COLUMN idempotence.shown_leases.stream IS 'the stream; empty: a key, or the session''s own numbering';
COMMENT ON COLUMN idempotence.shown_leases.request IS 'the key, or the first number';
COMMENT ON COLUMN idempotence.shown_leases.last IS 'the last number of a numbered request';
COMMENT ON COLUMN idempotence.shown_leases.leased_until IS 'when it runs out or ran out';
COMMENT ON COLUMN idempotence.shown_leases.holder IS 'the role that has it, or had it last';
COMMENT ON COLUMN idempotence.shown_leases.application IS 'the application_name of the holder';
COMMENT ON COLUMN idempotence.shown_leases.attempt IS '1 for the first holder, one more for each that took over';
COMMENT ON COLUMN idempotence.shown_leases.begun_at IS 'when the holder was given it';
COMMENT ON FUNCTION idempotence.leases() IS 'internal to the views sessions and unfinished: the leases that the caller may see; none on a standby where they are unlogged';
COMMENT ON VIEW idempotence.unfinished IS 'requests that were begun, committed, and are not done: leased, run out, or suspended at a checkpoint';
COMMENT ON COLUMN idempotence.unfinished.session IS 'the session';
COMMENT ON COLUMN idempotence.unfinished.stream IS 'the stream; empty: a key, or the session''s own numbering';
COMMENT ON COLUMN idempotence.unfinished.request IS 'the key, or the first number';
COMMENT ON COLUMN idempotence.unfinished.state IS 'leased: somebody is at work on it; run out: its lease ran out, and its effect may have happened; suspended: it stopped at a checkpoint';
COMMENT ON COLUMN idempotence.unfinished.leased_until IS 'when the lease runs out or ran out; null: there is none';
COMMENT ON COLUMN idempotence.unfinished.holder IS 'the role that has the lease, or had it last';
COMMENT ON COLUMN idempotence.unfinished.application IS 'the application_name of the holder';
COMMENT ON COLUMN idempotence.unfinished.attempt IS '1 for the first holder, one more for each that took over';
COMMENT ON COLUMN idempotence.unfinished.point IS 'the point of its checkpoint; null: it has none';
COMMENT ON COLUMN idempotence.unfinished.since IS 'when the holder was given the lease; suspended: when the checkpoint was written';
COMMENT ON COLUMN idempotence.unfinished.last IS 'the last number of a numbered request; null: a key';
COMMENT ON VIEW idempotence.segments IS 'the ring: three tables that outcomes are recorded in by turns';
COMMENT ON COLUMN idempotence.segments.segment IS 'N of the table outcome_N';
COMMENT ON COLUMN idempotence.segments.state IS 'current: outcomes are recorded there; closing: somebody may still be recording there; closed: kept until due_at; empty';
COMMENT ON COLUMN idempotence.segments.opened_at IS 'since when it is, or was, the current one';
COMMENT ON COLUMN idempotence.segments.closed_at IS 'since when surely nobody records there';
COMMENT ON COLUMN idempotence.segments.keep IS 'the ttl up to which it serves best to keep outcomes in segments, idempotence.retention at most, and six minutes: what lives longer goes to outcome_long';
COMMENT ON COLUMN idempotence.segments.due_at IS 'when its next state is due: to be turned away from, to be closed, to be emptied; null where nothing is in it';
COMMENT ON COLUMN idempotence.segments.outcomes IS 'how many outcomes are in it, expired ones too, as last estimated by VACUUM or ANALYZE';
COMMENT ON COLUMN idempotence.segments.bytes IS 'its size with index and TOAST table';
COMMENT ON COLUMN idempotence.segments.held_by IS 'who holds a lock that keeps it from its next state';

COMMENT ON VIEW idempotence.held_up IS 'internal to health: the transactions that hold requests, each with the root of what it waits for';
COMMENT ON VIEW idempotence.synchronous IS 'internal to health: how many synchronous standbys a commit waits for, how many are there, which are not, and how many commits wait';
COMMENT ON COLUMN idempotence.held_up.pid IS 'the process';
COMMENT ON COLUMN idempotence.held_up.requests IS 'how many requests it holds';
COMMENT ON COLUMN idempotence.held_up.xact_start IS 'when its transaction began';
COMMENT ON COLUMN idempotence.held_up.root IS 'the process at the root of what it waits for, itself if it waits for no lock; 0: a prepared transaction';
COMMENT ON COLUMN idempotence.held_up.prepared IS 'the gid of that prepared transaction';
COMMENT ON COLUMN idempotence.synchronous.needed IS 'how many standbys a commit waits for';
COMMENT ON COLUMN idempotence.synchronous.there IS 'how many of them keep up';
COMMENT ON COLUMN idempotence.synchronous.waiting IS 'how many commits wait';
COMMENT ON COLUMN idempotence.synchronous.since IS 'when the first of their statements began';
COMMENT ON COLUMN idempotence.synchronous.missing IS 'those of the setting that do not keep up';
COMMENT ON VIEW idempotence.upkeep IS 'internal to health: what its checks of the sweep have in common';
COMMENT ON COLUMN idempotence.upkeep.launcher IS 'the process of the launcher; 0: it does not run, null: the library is not preloaded';
COMMENT ON COLUMN idempotence.upkeep.last_sweep IS 'when this database was swept last';
COMMENT ON COLUMN idempotence.upkeep.standby IS 'whether this is a standby';
COMMENT ON COLUMN idempotence.upkeep.now IS 'the present moment';
COMMENT ON COLUMN idempotence.upkeep.visited IS 'whether the worker is to visit this database';
COMMENT ON COLUMN idempotence.upkeep.late IS 'after how long a sweep is late';
COMMENT ON COLUMN idempotence.upkeep.since IS 'the moment that lateness counts from';
COMMENT ON VIEW idempotence.holding IS 'internal to health: the transactions that hold locks on requests and sessions';
COMMENT ON COLUMN idempotence.holding.pid IS 'the process; null: a prepared transaction';
COMMENT ON COLUMN idempotence.holding.virtualtransaction IS 'what pg_locks calls it';
COMMENT ON COLUMN idempotence.holding.requests IS 'how many requests it holds';
COMMENT ON VIEW idempotence.blind IS 'internal to health: whether the leases cannot be seen here';
COMMENT ON COLUMN idempotence.blind.blind IS 'true on a standby where leases are unlogged';
COMMENT ON VIEW idempotence.many_unfinished IS 'internal to health: about how many requests are unfinished, where that is too many to look at each';
COMMENT ON COLUMN idempotence.many_unfinished.estimate IS 'about how many; null: few enough';
COMMENT ON FUNCTION idempotence.unseen() IS 'internal to health: why what is unfinished cannot be looked at; null: it can';
COMMENT ON FUNCTION idempotence.leases_of_roles() IS 'internal to health: the leases of each role, added up';
COMMENT ON FUNCTION idempotence.suspended_of_roles(interval) IS 'internal to health: what is suspended in the sessions of each role, added up';
COMMENT ON FUNCTION idempotence.unfinished_since(text, timestamptz) IS 'internal to health: the request of a role that is unfinished since this moment, in words';
COMMENT ON FUNCTION idempotence.is_of_given_up(jsonb) IS 'whether a response is that of a request that was given up';
COMMENT ON VIEW idempotence.keys IS 'internal to health: the keys of the digests';
COMMENT ON COLUMN idempotence.keys.keys IS 'how many there are';
COMMENT ON COLUMN idempotence.keys.used IS 'how many are in use';
COMMENT ON COLUMN idempotence.keys.two IS 'true: two different ones are in use';
COMMENT ON COLUMN idempotence.keys.of_another IS 'true: there are outcomes of another one';
COMMENT ON VIEW idempotence.of_another_key IS 'internal to health and to requests after a restore: some outcomes that were recorded with another key than the one that counts';
COMMENT ON COLUMN idempotence.of_another_key.session IS 'the session, which is here';
COMMENT ON VIEW idempotence.sample IS 'internal to health: some outcomes of each table';
COMMENT ON COLUMN idempotence.sample.digest IS 'the digest of the request';
COMMENT ON COLUMN idempotence.sample.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.sample.key IS 'the request';
COMMENT ON COLUMN idempotence.sample.recorded_at IS 'when it was recorded';
COMMENT ON COLUMN idempotence.sample.expires_at IS 'when it expires';
COMMENT ON VIEW idempotence.effective IS 'internal to health: settings that matter to requests, for the server and for each role';
COMMENT ON COLUMN idempotence.effective.role IS 'the role; 0: all that have none of their own';
COMMENT ON COLUMN idempotence.effective.name IS 'the setting';
COMMENT ON COLUMN idempotence.effective.value IS 'its value';
COMMENT ON COLUMN idempotence.effective.place IS 'where that is set, in words';
COMMENT ON FUNCTION idempotence.pace(text, timestamptz) IS 'internal to health: what was recorded into a table of outcomes since a moment, since when, how many bytes in a second lately, and for how long it is kept';
COMMENT ON FUNCTION idempotence.limit_of(regrole, text) IS 'internal to health: a limit on sessions, as it is set for a role';
COMMENT ON VIEW idempotence.growth IS 'internal to health: what outcomes take, and will take';
COMMENT ON COLUMN idempotence.growth.rate IS 'bytes in a second';
COMMENT ON COLUMN idempotence.growth.lately IS 'bytes in a second within the last hour';
COMMENT ON COLUMN idempotence.growth.needed IS 'bytes that outcomes take in the end at this rate';
COMMENT ON COLUMN idempotence.growth.present IS 'bytes that outcomes take now';
COMMENT ON COLUMN idempotence.growth.long_present IS 'bytes that those take now which outlive the segments';
COMMENT ON COLUMN idempotence.growth.is_long IS 'whether most of what was recorded of late outlives the segments';
COMMENT ON COLUMN idempotence.growth.free IS 'bytes that are free; null: unknown';
COMMENT ON VIEW idempotence.health IS 'one row a check: whether all is well, and what to do if not';
COMMENT ON COLUMN idempotence.health.name IS 'what is checked';
COMMENT ON COLUMN idempotence.health.level IS '0: ok, 1: warning, 2: critical';
COMMENT ON COLUMN idempotence.health.status IS 'the level as a word: ok, warning or critical';
COMMENT ON COLUMN idempotence.health.detail IS 'what was found';
COMMENT ON COLUMN idempotence.health.hint IS 'what to do; null where nothing is to be done';
-- The views of the checks all have the same columns.
DO $$
DECLARE
  check_ pg_catalog.regclass;
BEGIN
  FOR check_ IN SELECT c.oid FROM pg_catalog.pg_class c
                WHERE c.relnamespace OPERATOR(pg_catalog.=) 'idempotence'::pg_catalog.regnamespace AND c.relkind OPERATOR(pg_catalog.=) 'v'
                  AND pg_catalog.starts_with(c.relname::pg_catalog.text, 'check_') LOOP
    EXECUTE pg_catalog.format('COMMENT ON VIEW %s IS ''internal to health: one of its rows''', check_);
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.level IS ''0: ok, 1: warning, 2: critical''', check_);
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.detail IS ''what was found''', check_);
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.hint IS ''what to do if the level is not 0''', check_);
  END LOOP;
END
$$;

COMMENT ON VIEW idempotence.function_level IS 'the functions of this extension and the level that idem_grant gives them with';
COMMENT ON COLUMN idempotence.function_level.function IS 'its oid';
COMMENT ON COLUMN idempotence.function_level.level IS 'user, monitor or admin; all: each of them; null for what only the extension''s owner may call';

COMMENT ON VIEW idempotence.relation_level IS 'the tables and views of this extension and the level that idem_grant lets them be read with';
COMMENT ON COLUMN idempotence.relation_level.relation IS 'its oid';
COMMENT ON COLUMN idempotence.relation_level.level IS 'user, monitor or admin; all: each of them; null for what only the extension''s owner may read';

-- Tables. No role has a privilege on them, except that idem_grant lets admins read audit.
COMMENT ON TABLE idempotence.session IS 'standing sessions, dropped ones included, and client sessions from their first outcome on';
COMMENT ON COLUMN idempotence.session.id IS 'the same through drop and new creation';
COMMENT ON COLUMN idempotence.session.created_at IS 'when it was first made';
COMMENT ON COLUMN idempotence.session.ended_at IS 'when it was dropped, closed, fenced or ran out; null while it lives';
COMMENT ON COLUMN idempotence.session.owner IS 'the role that it belongs to';
COMMENT ON COLUMN idempotence.session.window_size IS 'how many replies of each stream a client session keeps; null: a standing session';
COMMENT ON COLUMN idempotence.session.ordering IS 'of a client session''s numbers; a: any, s: strict';
COMMENT ON COLUMN idempotence.session.ended IS 'how a client session ended; c: closed, e: expired, f: fenced; a capital: without ever being saved';
COMMENT ON COLUMN idempotence.session.request_id IS 'the id that a client session was registered with';
COMMENT ON COLUMN idempotence.session.timeout IS 'the longest silence that a client session outlasts';
COMMENT ON COLUMN idempotence.session.client IS 'the name that a client registered under';
COMMENT ON COLUMN idempotence.session.usable_by IS 'the role that a standing session is lent to; null: nobody';
COMMENT ON COLUMN idempotence.session.max_attempts IS 'after how many attempts a request whose lease runs out is given up; null: never';
COMMENT ON COLUMN idempotence.session.node IS 'the node that a standing session is bound to, or where a client session was registered; null: none';
COMMENT ON COLUMN idempotence.session.journal IS 'the table that keeps its requests; null: ours do';
COMMENT ON COLUMN idempotence.session.require_payload IS 'whether each request must come with a payload';
COMMENT ON COLUMN idempotence.session.inbox IS 'whether it only deduplicates';
COMMENT ON COLUMN idempotence.session.time_keys IS 'whether its keys must be UUIDv7';
COMMENT ON COLUMN idempotence.session.ttl IS 'how long its outcomes live; null: the setting idempotence.retention';
COMMENT ON COLUMN idempotence.session.name IS 'what callers know it by; null: a client session, known by its id and node';

COMMENT ON TABLE idempotence.session_live IS 'client sessions at work; unlogged, so empty after a crash and on a standby';
COMMENT ON COLUMN idempotence.session_live.id IS 'what its client knows it by, with the node';
COMMENT ON COLUMN idempotence.session_live.created_at IS 'when it was registered';
COMMENT ON COLUMN idempotence.session_live.last_seen IS 'its last sign of life; one is written when the last is older than an eighth of the timeout';
COMMENT ON COLUMN idempotence.session_live.owner IS 'the role that registered it';
COMMENT ON COLUMN idempotence.session_live.window_size IS 'how many replies of each stream are kept';
COMMENT ON COLUMN idempotence.session_live.ordering IS 'of its numbers; a: any, s: strict';
COMMENT ON COLUMN idempotence.session_live.request_id IS 'the id that it was registered with';
COMMENT ON COLUMN idempotence.session_live.timeout IS 'the longest silence that it outlasts';
COMMENT ON COLUMN idempotence.session_live.client IS 'the name that its client registered under';
COMMENT ON COLUMN idempotence.session_live.node IS 'the node where it was registered';

COMMENT ON TABLE idempotence.reply IS 'outcomes of client sessions: the newest of each stream, in as many slots as the window is wide';
COMMENT ON COLUMN idempotence.reply.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.reply.first IS 'the request''s number, or the first of its numbers';
COMMENT ON COLUMN idempotence.reply.last IS 'the last of its numbers';
COMMENT ON COLUMN idempotence.reply.recorded_at IS 'when it was recorded, or dropped';
COMMENT ON COLUMN idempotence.reply.recorded_by IS 'the role that recorded, or dropped it';
COMMENT ON COLUMN idempotence.reply.slot IS 'where numbers come in any order: the number modulo the window; else the slot of the oldest request that was kept';
COMMENT ON COLUMN idempotence.reply.class IS 's: succeeded, f: failed, g: given up, c: cancelled, d: dropped, with nothing left but that it was done';
COMMENT ON COLUMN idempotence.reply.stream IS 'the stream''s name; empty: the session''s own numbering';
COMMENT ON COLUMN idempotence.reply.fingerprint IS 'of the payload; null where none was given';
COMMENT ON COLUMN idempotence.reply.token IS 'of the lease that it was recorded with; null without a lease';
COMMENT ON COLUMN idempotence.reply.response IS 'what it answered';

COMMENT ON TABLE idempotence.stream IS 'what clients said of their streams';
COMMENT ON COLUMN idempotence.stream.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.stream.acked IS 'all numbers up to here are answered or given up';
COMMENT ON COLUMN idempotence.stream.allocated IS 'all numbers up to here were handed out';
COMMENT ON COLUMN idempotence.stream.stream IS 'the stream''s name';

DO $$
DECLARE
  segment text;
  note    record;
BEGIN
  FOREACH segment IN ARRAY '{outcome_0,outcome_1,outcome_2,outcome_long}'::text[] LOOP
    EXECUTE pg_catalog.format('COMMENT ON TABLE idempotence.%I IS %L', segment,
      CASE WHEN segment OPERATOR(pg_catalog.=) 'outcome_long' THEN 'outcomes that outlive the segments; deleted one by one'
           ELSE 'outcomes, one of three segments; table segment tells which one is written' END);
    FOR note IN SELECT * FROM (VALUES
      ('digest',      'keyed digest of session and key, what a request is looked up and locked by'),
      ('session',     'the session''s id'),
      ('recorded_at', 'when it was recorded'),
      ('expires_at',  'when it expires; a row that has expired counts as absent'),
      ('recorded_by', 'the role that recorded it'),
      ('class',       's: succeeded, f: failed, g: given up, c: cancelled'),
      ('key',         'the request''s key'),
      ('fingerprint', 'of the payload; null where none was given'),
      ('token',       'of the lease that it was recorded with; null without a lease'),
      ('response',    'what it answered')) AS n (column_name, meaning)
    LOOP
      EXECUTE pg_catalog.format('COMMENT ON COLUMN idempotence.%I.%I IS %L', segment, note.column_name, note.meaning);
    END LOOP;
  END LOOP;
END
$$;

COMMENT ON TABLE idempotence.segment IS 'where the ring of the three outcome tables stands';
COMMENT ON COLUMN idempotence.segment.opened_at IS 'since when it is, or was, the one written';
COMMENT ON COLUMN idempotence.segment.closed_at IS 'since when surely nobody writes it';
COMMENT ON COLUMN idempotence.segment.keep_us IS 'the ttl up to which it serves best to keep outcomes like its own in segments, and six minutes, in microseconds; 0: not known yet';
COMMENT ON COLUMN idempotence.segment.ends_at IS 'when the last of its outcomes expires at the latest; null: half as much again as idempotence.retention after opened_at';
COMMENT ON COLUMN idempotence.segment.number IS 'N of the table outcome_N';
COMMENT ON COLUMN idempotence.segment.current IS 'whether outcomes are recorded there';
COMMENT ON COLUMN idempotence.segment.sessions_at IS 'in the first row: when sessions were restored last, or the ring was made';
COMMENT ON COLUMN idempotence.segment.opening IS 'whether it is announced as the next one to be current';
COMMENT ON COLUMN idempotence.segment.looked_at IS 'when it was last looked into, for how long its outcomes live';
COMMENT ON COLUMN idempotence.segment.restored IS 'whether something may have been put there by SQL, as a restore does';
COMMENT ON COLUMN idempotence.segment.looked_to IS 'how many of its pages were looked through so far for the outcome that expires last; null: ends_at is known';
COMMENT ON COLUMN idempotence.segment.looked_in IS 'the file that these pages are in';

COMMENT ON TABLE idempotence.sweep IS 'what the sweep remembers; it has no row after a crash or a failover';
COMMENT ON COLUMN idempotence.sweep.done_at IS 'when the step came to the end of its table last. Of a journal: when it was noted';
COMMENT ON COLUMN idempotence.sweep.place IS 'how far it has come since: page and item; 0: not begun again';
COMMENT ON COLUMN idempotence.sweep.step IS 'the step, or by hand: all of them by CALL idem_sweep(). Or a journal that cannot be swept';
COMMENT ON COLUMN idempotence.sweep.said IS 'why the journal cannot be swept';

COMMENT ON TABLE idempotence.restore IS 'that rows were restored, until it is known that their sessions were as well';
COMMENT ON COLUMN idempotence.restore.noted_at IS 'when they were restored';
COMMENT ON COLUMN idempotence.restore.looked_at IS 'when the sweep began to look through them; null: not since then';
COMMENT ON COLUMN idempotence.restore.place IS 'how far it has come: table, page and item; 0: it is not at it';
COMMENT ON COLUMN idempotence.restore.orphans IS 'the number of rows without a session that it met first; 0: none; null: not looked through to the end';
COMMENT ON COLUMN idempotence.restore.brought IS 'the table that was restored';

COMMENT ON TABLE idempotence.lease IS 'leases of requests that are not done: claims that were committed';
COMMENT ON COLUMN idempotence.lease.digest IS 'keyed digest of what is locked for the request: its key, its slot or its stream';
COMMENT ON COLUMN idempotence.lease.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.lease.token IS 'what its holder completes the request with';
COMMENT ON COLUMN idempotence.lease.begun_at IS 'when its holder was given it';
COMMENT ON COLUMN idempotence.lease.leased_until IS 'when it runs out; from then on a begin takes the request over';
COMMENT ON COLUMN idempotence.lease.last IS 'the last of a numbered request''s numbers';
COMMENT ON COLUMN idempotence.lease.attempt IS '1 for the first holder, one more for each that took over';
COMMENT ON COLUMN idempotence.lease.holder IS 'the role that began the request or extended the lease';
COMMENT ON COLUMN idempotence.lease.fingerprint IS 'of the payload; null where none was given';
COMMENT ON COLUMN idempotence.lease.request IS 'the request''s key or number';
COMMENT ON COLUMN idempotence.lease.stream IS 'the request''s stream; empty in a standing session';
COMMENT ON COLUMN idempotence.lease.application IS 'the application_name of the holder';
COMMENT ON TABLE idempotence.persistence IS 'what a DBA has chosen to be logged or unlogged';
COMMENT ON COLUMN idempotence.persistence.unlogged IS 'whether it is to be unlogged';
COMMENT ON COLUMN idempotence.persistence.what IS 'claims or sessions';
COMMENT ON TABLE idempotence.checkpoint IS 'how far requests got that have no outcome yet';
COMMENT ON COLUMN idempotence.checkpoint.digest IS 'keyed digest of session and key, what a request is looked up and locked by';
COMMENT ON COLUMN idempotence.checkpoint.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.checkpoint.written_at IS 'when it was written; in a standing session it counts for the session''s ttl from then on';
COMMENT ON COLUMN idempotence.checkpoint.request IS 'the request''s key or number';
COMMENT ON COLUMN idempotence.checkpoint.last IS 'the last of a numbered request''s numbers';
COMMENT ON COLUMN idempotence.checkpoint.stream IS 'the request''s stream; empty in a standing session';
COMMENT ON COLUMN idempotence.checkpoint.point IS 'a name for where to go on';
COMMENT ON COLUMN idempotence.checkpoint.fingerprint IS 'of the payload; null where none was given';
COMMENT ON COLUMN idempotence.checkpoint.state IS 'what going on needs';

COMMENT ON TABLE idempotence.secret IS 'the key of the digests: the row in use counts; whoever reads it can compute what locks other roles'' requests';
COMMENT ON COLUMN idempotence.secret.in_use_since IS 'when the first session was made under it; null: not in use';
COMMENT ON COLUMN idempotence.secret.key IS '32 random bytes';

COMMENT ON TABLE idempotence.audit IS 'repairs and decisions, those of a session''s owner too, and who was granted what; idem_purge_audit deletes old rows';
COMMENT ON COLUMN idempotence.audit.at IS 'when';
COMMENT ON COLUMN idempotence.audit.by IS 'the name of the role whose rights counted (current_user)';
COMMENT ON COLUMN idempotence.audit.login IS 'the name of the role that the connection was of when it was opened, whatever SET ROLE and SET SESSION AUTHORIZATION have made of it';
COMMENT ON COLUMN idempotence.audit.application IS 'the application_name of the connection';
COMMENT ON COLUMN idempotence.audit.client_addr IS 'the address of its client; null: a local socket';
COMMENT ON COLUMN idempotence.audit.action IS 'what was done';
COMMENT ON COLUMN idempotence.audit.session IS 'the session''s name';
COMMENT ON COLUMN idempotence.audit.request IS 'the request''s key';
COMMENT ON COLUMN idempotence.audit.reason IS 'why, as given; null: the call takes no reason';
COMMENT ON COLUMN idempotence.audit.found IS 'what was there';

COMMENT ON TABLE idempotence.granted IS 'the levels that idem_grant has granted, so that rights that a restore has lost are noticed';
COMMENT ON COLUMN idempotence.granted.role IS 'the name of the role';
COMMENT ON COLUMN idempotence.granted.level IS 'the level';
