//! What the settings of a caller change: nothing.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(a_call_answers_the_same_under_any_setting, an_extension_is_the_same_under_any_setting);

/// Settings that change how PostgreSQL and PL/pgSQL read and write texts and statements. Here and below a setting that this
/// server does not have is left out.
const READING: [&str; 27] = [
    "datestyle = 'German'",
    "datestyle = 'SQL, DMY'",
    "datestyle = 'Postgres, YMD'",
    "intervalstyle = 'sql_standard'",
    "intervalstyle = 'iso_8601'",
    "intervalstyle = 'postgres_verbose'",
    "timezone = 'America/St_Johns'",
    "timezone = '<-1137>+11:37'",
    "extra_float_digits = -15",
    "bytea_output = 'escape'",
    "standard_conforming_strings = off",
    "backslash_quote = off",
    "array_nulls = off",
    "transform_null_equals = on",
    "quote_all_identifiers = on",
    "xmloption = 'document'",
    "xmlbinary = 'hex'",
    "lc_messages = 'C'",
    "search_path = ''",
    "search_path = 'pg_catalog'",
    "check_function_bodies = off",
    "plpgsql.extra_errors = 'all'",
    "plpgsql.extra_warnings = 'all'",
    "plpgsql.variable_conflict = 'use_variable'",
    "plpgsql.variable_conflict = 'use_column'",
    "plpgsql.print_strict_params = on",
    "plpgsql.check_asserts = off",
];

/// Settings that change how PostgreSQL plans, executes and reports.
const EXECUTING: [&str; 26] = [
    "plan_cache_mode = 'force_generic_plan'",
    "plan_cache_mode = 'force_custom_plan'",
    "enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
    "enable_seqscan = off",
    "from_collapse_limit = 1; SET join_collapse_limit = 1; SET geqo_threshold = 2",
    "constraint_exclusion = on",
    "cursor_tuple_fraction = 1.0",
    "jit = off",
    "force_parallel_mode = on",
    "force_parallel_mode = regress",
    "debug_parallel_query = on",
    "debug_parallel_query = regress",
    "parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0",
    "work_mem = '64kB'; SET temp_buffers = '800kB'",
    "row_security = off",
    "default_transaction_deferrable = on",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_isolation = 'serializable'",
    "default_table_access_method = 'heap'",
    "default_toast_compression = 'pglz'",
    "session_replication_role = replica",
    "synchronous_commit = off",
    "track_functions = 'all'; SET track_activities = off",
    "lock_timeout = '10 s'; SET deadlock_timeout = '10 ms'; SET statement_timeout = '1 min'",
    "client_min_messages = 'debug5'; SET debug_print_parse = on; SET debug_print_plan = on; SET log_statement_stats = on",
    "max_stack_depth = '200kB'",
];

/// Calls of each kind, in their order. `#` stands for a word that is different each time, and `WAITER` for the process id of
/// a backend that waits for a request. Functions are qualified, as whoever sets the search_path has to do it.
const CALLS: [&str; 61] = [
    "SELECT public.idem_grant('somebody', 'monitor')",
    "SELECT public.idem_grant('somebody', NULL)",
    "SELECT public.idem_grant('somebody', 'none')",
    "SELECT public.idem_revoke('somebody')",
    "SELECT public.idem_create_session('#', ttl => '1 day 2 hours', max_attempts => 3)",
    "SELECT public.idem_create_session('#', ttl => '26 hours', max_attempts => 3)",
    "SELECT public.idem_create_session('# inbox', inbox => true, ttl => '90 minutes')",
    "SELECT public.idem_alter_session('#', ttl => '36 hours')",
    "SELECT extract(epoch FROM ttl) FROM idempotence.sessions WHERE session = '#'",
    "BEGIN; SELECT status, replayed FROM public.idem_begin('#', 'a', payload => '{\"a\": 1.0, \"b\": [1, null]}');
     SELECT public.idem_record('#', 'a', '{\"x\": 1e3}') IS NOT NULL; COMMIT",
    "SELECT status, replayed, response, expires_at - recorded_at = interval '36:00:00' FROM public.idem_begin('#', 'a', payload => '{\"b\": [1, null], \"a\": 1}')",
    "SELECT status FROM public.idem_begin('#', 'a', payload => '{\"b\": [1]}')",
    "BEGIN; SELECT status FROM public.idem_begin('#', 'ttl'); SELECT public.idem_record('#', 'ttl', ttl => '1 hour') IS NOT NULL; COMMIT",
    "SELECT expires_at - recorded_at = interval '1 hour' FROM public.idem_lookup('#', 'ttl')",
    "SELECT status FROM public.idem_begin('#', 'unrecorded')",
    "SELECT status, response FROM public.idem_run('#', 'run', 'SELECT $1', '{\"q\": \"ä\"}')",
    "SELECT status, replayed, response FROM public.idem_run('#', 'run', 'SELECT $1', '{\"q\": \"ä\"}')",
    "SELECT status, response FROM public.idem_run('#', 'fails', 'SELECT 1/0', on_error => 'record')",
    "SELECT status FROM public.idem_run('#', 'raises', 'SELECT 1/0')",
    "SELECT status FROM public.idem_begin('no such session #', 'a')",
    "SELECT public.idem_once('# inbox', 'm1'), public.idem_once('# inbox', 'm1')",
    "SELECT ord, request FROM public.idem_once_many('# inbox', '{m1,m2,m3,m2}')",
    "SELECT status, attempt, expires_at - now() BETWEEN interval '29 s' AND interval '40 s' FROM public.idem_begin('#', 'lease', payload => '1', lease => '30 seconds')",
    "SELECT status FROM public.idem_begin('#', 'lease', wait => '0')",
    "SELECT status FROM public.idem_begin('#', 'lease', wait => '0.1')",
    "SELECT status FROM public.idem_begin('shared', 'held', wait => '10 ms')",
    "SELECT status FROM public.idem_lookup('shared', 'held', wait => '10 ms')",
    "SELECT public.idem_claim('shared', 'held', wait => '10 ms')",
    "SELECT request, state, attempt, leased_until > now() FROM idempotence.unfinished WHERE session = '#' ORDER BY request",
    "BEGIN; SELECT status, point FROM public.idem_begin('#', 'point'); SELECT public.idem_checkpoint('#', 'point', 'half', '{\"s\": 1}'); COMMIT",
    "BEGIN; SELECT status, point, state FROM public.idem_begin('#', 'point'); SELECT public.idem_release('#', 'point'); COMMIT",
    "SELECT status, replayed FROM public.idem_settle('#', 'gone', response => '{}')",
    "SELECT status FROM public.idem_lookup('#', 'gone')",
    "SELECT status FROM public.idem_begin('#', 'short', lease => '10 milliseconds')",
    "SELECT pg_sleep(0.02)",
    "BEGIN; SELECT status, attempt FROM public.idem_begin('#', 'short'); SELECT public.idem_record('#', 'short', failed => true) IS NOT NULL; COMMIT",
    "SELECT request, status, response FROM public.idem_outcomes('#', most => 100) ORDER BY request COLLATE \"C\"",
    "SELECT count(*) FROM public.idem_outcomes('#', since => now() - interval '1 hour', before => now() + interval '1 hour')",
    "SELECT public.idem_forget('#', 'a', 'a test')",
    "SELECT status FROM public.idem_lookup('#', 'a')",
    "SELECT public.idem_key('{\"a\": 1}'), public.idem_fingerprint('{\"a\": [1.50, \"x\"]}')",
    "SELECT session IS NOT NULL, resumed FROM public.idem_register('client #')",
    "SELECT imported, present, expired FROM public.idem_import('#', $q$SELECT 'i1' AS key, '{}'::jsonb AS response, now() - interval '1 minute' AS recorded_at$q$, 'a test')",
    "SELECT imported, present, expired FROM public.idem_import('#', $q$SELECT 'i1' AS key, now() AS recorded_at UNION ALL SELECT 'i2', '2020-01-01'::timestamptz$q$, 'a test')",
    "SELECT public.idem_redact('#', 'run', 'a test')",
    "SELECT public.idem_redact_prefix('#', 'f', 'a test')",
    "SELECT public.idem_force_release('#', 'lease', 'a test', live => true)",
    "SELECT public.idem_explain('#', 'run') -> 'begin_answers' ->> 'status', public.idem_explain('#', 'gone') ->> 'of' IS NOT NULL",
    "SELECT segment, state FROM idempotence.segments",
    "SELECT started, replayed, recorded, failed FROM idempotence.stats WHERE session = '#'",
    "SELECT sqlstate, request FROM idempotence.errors WHERE session = '#' ORDER BY at, sqlstate",
    "SELECT request, waiters, state FROM idempotence.in_flight WHERE session = 'shared'",
    "SELECT root = (SELECT pid FROM idempotence.in_flight WHERE request = 'held'), prepared FROM idempotence.root_blocker(WAITER)",
    "SELECT count(*) FROM idempotence.at_work() WHERE client = 'client #'",
    "SELECT name, level FROM idempotence.health WHERE name NOT IN ('worker', 'sweep', 'waiters', 'settings')",
    "SELECT public.idem_ready()",
    "CALL public.idem_sweep()",
    "SELECT public.idem_drop_session('#')",
    "SELECT status FROM public.idem_lookup('#', 'run')",
    "SELECT key, status FROM public.idem_export('#', 'a test') ORDER BY key COLLATE \"C\"",
    "SELECT public.idem_purge_audit(now() - interval '1 day', 'a test')",
];

/// What comes of all calls on this connection.
async fn answers(connection: &Connection, word: &str, waiter: i32) -> Result<Vec<String>> {
    let mut answers = Vec::new();
    for call in CALLS {
        let sql = call.replace('#', word).replace("WAITER", &waiter.to_string());
        let answer = match connection.try_text(&sql).await {
            Ok(text) => text,
            Err(error) => {
                let said = error.as_db_error().with_context(|| sql.clone())?;
                let answer =
                    format!("{} {} / {:?} / {:?}", said.code().code(), said.message(), said.detail(), said.hint());
                connection.text("ROLLBACK").await?;
                answer
            }
        };
        answers.push(answer.replace(word, "#"));
    }
    Ok(answers)
}

/// Sets it; whether this server has such a setting.
async fn set(connection: &Connection, setting: &str) -> Result<bool> {
    match connection.try_text(&format!("SET {setting}")).await {
        Ok(_) => Ok(true),
        // Unknown, or without the value that this version lacks.
        Err(error) if error.code().is_some_and(|code| ["42704", "22023", "0A000"].contains(&code.code())) => Ok(false),
        Err(error) => Err(error).with_context(|| setting.to_owned()),
    }
}

// Goal: whatever a caller has set, a call gives the same answer.
// Method: the same calls under each setting, compared with those under none. Everything that PL/pgSQL of the extension does is
// among them.
async fn a_call_answers_the_same_under_any_setting(version: Version) -> Result<()> {
    let server =
        Cluster::start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1h")])?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, "CREATE ROLE somebody; SELECT idem_create_session('shared')")?;
    let (holder, waiter) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    holder.text("BEGIN; SELECT FROM idem_begin('shared', 'held')").await?;
    let waiting = waiter.pid().await?;
    let waits = tokio::spawn(async move {
        let _ = waiter.try_text("SELECT FROM idem_begin('shared', 'held', wait => '1 hour')").await;
    });
    let usual = answers(&server.connect(DATABASE).await?, "w0000000000", waiting).await?;
    ensure!(answers(&server.connect(DATABASE).await?, "w0000000001", waiting).await? == usual, "{usual:#?}");
    let (mut tried, mut differences) = (0, Vec::new());
    for (number, setting) in READING.iter().chain(&EXECUTING).enumerate() {
        let connection = server.connect(DATABASE).await?;
        // So that the settings of PL/pgSQL are known.
        connection.text("DO 'BEGIN END'").await?;
        if !set(&connection, setting).await? {
            continue;
        }
        tried += 1;
        let here = answers(&connection, &format!("w{:010}", number + 2), waiting).await?;
        for ((call, usual), here) in CALLS.iter().zip(&usual).zip(&here).filter(|((_, usual), here)| usual != here) {
            differences.push(format!("SET {setting}\n{call}\n  usual: {usual}\n  here:  {here}"));
        }
    }
    ensure!(tried >= 49, "{tried} settings were tried");
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    waits.abort();
    Ok(())
}

/// The definitions of all that CREATE EXTENSION has made.
const DEFINITIONS: &str = "
    WITH made AS (SELECT classid, objid FROM pg_depend
                  WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotence'))
    SELECT p.oid::regprocedure || ': ' || pg_get_functiondef(p.oid) FROM made JOIN pg_proc p ON classid = 'pg_proc'::regclass AND objid = p.oid
    UNION ALL SELECT c.oid::regclass || ': ' || pg_get_viewdef(c.oid) FROM made JOIN pg_class c ON classid = 'pg_class'::regclass AND objid = c.oid WHERE relkind = 'v'
    UNION ALL SELECT a.attrelid::regclass || '.' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attcompression::text FROM made JOIN pg_attribute a ON classid = 'pg_class'::regclass AND objid = attrelid
    UNION ALL SELECT o.conrelid::regclass || ': ' || pg_get_constraintdef(o.oid) FROM made JOIN pg_constraint o ON classid = 'pg_class'::regclass AND objid = conrelid
    UNION ALL SELECT i.indrelid::regclass || ': ' || pg_get_indexdef(indexrelid) FROM made JOIN pg_index i ON classid = 'pg_class'::regclass AND objid = indrelid
    UNION ALL SELECT d.adrelid::regclass || ': ' || pg_get_expr(adbin, adrelid) FROM made JOIN pg_attrdef d ON classid = 'pg_class'::regclass AND objid = adrelid
    UNION ALL SELECT 'comment ' || description FROM made JOIN pg_description n ON n.classoid = classid AND n.objoid = objid
    ORDER BY 1";

// Goal: CREATE EXTENSION makes the same objects, however the settings of its caller have it read.
// Method: the definitions of all objects, as they are shown without the setting.
async fn an_extension_is_the_same_under_any_setting(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    let connection = server.connect("postgres").await?;
    connection.text("DO 'BEGIN END'").await?;
    let mut usual = None;
    for setting in ["application_name = 'none of the settings'"].iter().chain(&READING) {
        connection.text("BEGIN").await?;
        if set(&connection, setting).await? {
            let made = connection.text("CREATE EXTENSION idempotence WITH SCHEMA public").await;
            made.with_context(|| format!("SET {setting}"))?;
            let definitions = connection.text(&format!("RESET ALL; {DEFINITIONS}")).await?;
            // Where a body names the schema of the extension, PostgreSQL quotes it as quote_all_identifiers says.
            let definitions = definitions.replace("\"public\"", "public");
            let usual = usual.get_or_insert_with(|| definitions.clone());
            let differs = usual.lines().zip(definitions.lines()).find(|(usual, here)| usual != here);
            ensure!(*usual == definitions, "SET {setting}: {differs:#?}");
            ensure!(usual.len() > 100_000, "{usual}");
        }
        connection.text("ROLLBACK").await?;
    }
    Ok(())
}
