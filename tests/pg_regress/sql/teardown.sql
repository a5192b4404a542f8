-- Goal: the tests before left nothing behind, here or in the cluster.
-- Method: look for what they would have left.
\pset format unaligned
\pset tuples_only on
SELECT session FROM idempotence.sessions WHERE ended IS NULL ORDER BY session;
SELECT alias FROM regress_client_session;
SELECT count(*) FROM idempotence.session_live;
SELECT count(*) FROM idempotence.lease;
SELECT regress_claims();
SELECT gid FROM pg_prepared_xacts WHERE database = current_database();
SELECT rolname FROM pg_roles WHERE rolname ~ '^regress_';
SELECT datname FROM pg_database WHERE datname ~ '^regress_';
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 'c' AND relname !~ '^regress_(client_session|lease_token)';
DROP FUNCTION regress_show, regress_error, regress_message, regress_uuid7, regress_claims, regress_registered, regress_id, regress_uuid, regress_told,
  regress_fall_silent, regress_run_out, regress_session, regress_close, regress_take, regress_token, regress_lease_ends, regress_kept;
DROP TABLE regress_client_session, regress_lease_token;
ALTER DATABASE contrib_regression IS_TEMPLATE false;
-- and the extension goes without a trace
DROP EXTENSION idempotence;
SELECT nspname FROM pg_namespace WHERE nspname = 'idempotence';
SELECT proname FROM pg_proc WHERE proname LIKE 'idem\_%';
SELECT typname FROM pg_type WHERE typname LIKE '%idem%';
