//! Where the extension may be, and what may come before it on the search path.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::fixture;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(
    the_extension_lives_in_any_schema,
    a_hostile_search_path_changes_nothing,
    the_schema_of_the_tables_must_not_be_anothers,
);

// Goal: the extension may be in any schema, with any name, even in the schema of its tables.
// Method: the whole fixture in each of these schemas, granted to roles. Functions are found by the search
// path, or are called by their full name.
async fn the_extension_lives_in_any_schema(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    fixture::create_roles(&server)?;
    for (database, schema) in [("plain", "public"), ("own", "idempotence"), ("odd", "\"Odd Schema\"")] {
        server.psql("postgres", &format!("CREATE DATABASE {database}"))?;
        server.psql(
            database,
            &format!("CREATE SCHEMA IF NOT EXISTS {schema}; CREATE EXTENSION idempotence SCHEMA {schema}"),
        )?;
        fixture::fill(&server, database).await?.check(&server, database).await?;

        let qualified = server.connect_as(database, "app").await?;
        qualified.text("SET search_path = ''").await?;
        let run = format!("SELECT status, response FROM {schema}.idem_run('payments', 'run', 'SELECT 1')");
        ensure!(qualified.text(&run).await? == "succeeded|1");
        let replay = format!("SELECT replayed, response FROM {schema}.idem_begin('payments', 'run')");
        ensure!(qualified.text(&replay).await? == "t|1");
        server.psql(database, &format!("SELECT {schema}.idem_revoke('app')"))?;
        ensure!(["42501", "42883"].contains(&qualified.sqlstate(&replay).await?.as_str()), "revoked, but: {schema}");
    }
    Ok(())
}

/// A schema of an attacker. It has everything that the extension's own SQL names, and each of these objects
/// fails when it is used.
const TRAPS: &str = r#"
    CREATE SCHEMA trap;
    GRANT USAGE ON SCHEMA trap TO PUBLIC;
    CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'hijacked' USING ERRCODE = 'HIJAK'; END $$;
    DO $do$
    DECLARE
        type text;
        name text;
    BEGIN
        -- Operators on all types that the extension's SQL compares or concatenates.
        FOREACH type IN ARRAY '{text,name,oid,int4,int8,bool,uuid,timestamptz,bytea,"\"char\"",jsonb,interval,regclass}'::text[] LOOP
            EXECUTE format('CREATE FUNCTION trap.compare(pg_catalog.%1$s, pg_catalog.%1$s) RETURNS boolean LANGUAGE sql AS ''SELECT trap.spring()''', type);
            FOREACH name IN ARRAY '{=,<>,<,<=,>,>=,||,->>,->,+,-,~~}'::text[] LOOP
                EXECUTE format('CREATE OPERATOR trap.%s (LEFTARG = pg_catalog.%s, RIGHTARG = pg_catalog.%2$s, FUNCTION = trap.compare)', name, type);
            END LOOP;
            -- Types of the same names. Each value of these types springs the trap.
            IF type <> '"char"' THEN
                EXECUTE format('CREATE DOMAIN trap.%s AS pg_catalog.%1$s CHECK (trap.spring())', type);
            END IF;
        END LOOP;
        EXECUTE 'CREATE DOMAIN trap.regprocedure AS pg_catalog.regprocedure CHECK (trap.spring())';
        EXECUTE 'CREATE DOMAIN trap.regrole AS pg_catalog.regrole CHECK (trap.spring())';
        -- Functions of the same names, which match at least as well.
        FOREACH name IN ARRAY '{format(text),format(text\,text),format(text\,text\,text),left(text\,int4),length(bytea),now(),clock_timestamp(),current_database(),jsonb_build_object(text\,text),to_jsonb(text),pg_has_role(oid\,text),has_function_privilege(oid\,text),bool_or(bool),getdatabaseencoding(),idem_begin(text\,text),idem_begin(text\,int8),idem_begin(text\,text\,jsonb),idem_begin(text\,text\,jsonb\,interval),idem_record(text\,text),idem_record(text\,text\,jsonb),idem_lookup(text\,text),idem_once(text\,text),idem_run(text\,text\,text),retention()}'::text[] LOOP
            EXECUTE format('CREATE FUNCTION trap.%s RETURNS boolean LANGUAGE plpgsql AS ''BEGIN RETURN trap.spring(); END''',
                           replace(replace(replace(name, '(', '(pg_catalog.'), ',', ',pg_catalog.'), '(pg_catalog.)', '()'));
        END LOOP;
        EXECUTE 'CREATE FUNCTION trap.jsonb_build_object(VARIADIC pg_catalog.text[]) RETURNS boolean LANGUAGE sql AS ''SELECT trap.spring()''';
        EXECUTE 'CREATE FUNCTION trap.unnest(anyarray) RETURNS SETOF anyelement LANGUAGE sql AS ''SELECT $1[1] WHERE trap.spring()''';
        EXECUTE 'CREATE TYPE trap.idem_ticket AS (hijacked pg_catalog.bool)';
        FOREACH name IN ARRAY '{session,outcome_0,outcome_1,outcome_2,outcome_long,segment,checkpoint,secret,audit,sessions,outcomes,function_level,pg_extension,pg_proc,pg_depend}'::text[] LOOP
            EXECUTE format('CREATE VIEW trap.%I AS SELECT trap.spring()', name);
        END LOOP;
    END
    $do$"#;

/// A call of each function by its full name, and its answer.
const CALLS: [(&str, &str); 26] = [
    ("SELECT public.idem_create_session('payments')", ""),
    ("SELECT public.idem_create_session('mails', inbox => true, ttl => '1 day')", ""),
    ("SELECT public.idem_alter_session('payments', ttl => '2 days')", ""),
    (
        "BEGIN; SELECT status FROM public.idem_begin('payments', 'k', payload => '1', wait => '1 s'); SELECT FROM public.idem_record('payments', 'k', '2', ttl => '1 day'); COMMIT",
        "started",
    ),
    ("SELECT status, response FROM public.idem_begin('payments', 'k', payload => '1')", "succeeded|2"),
    ("SELECT status, response FROM public.idem_lookup('payments', 'k')", "succeeded|2"),
    (
        "BEGIN; SELECT status FROM public.idem_begin('payments', 42); SELECT public.idem_checkpoint('payments', 42, 'p', '1'); COMMIT",
        "started",
    ),
    (
        "BEGIN; SELECT status FROM public.idem_begin('payments', 'r'); SELECT public.idem_release('payments', 'r'); COMMIT",
        "started",
    ),
    (
        "SELECT status, response FROM public.idem_run('payments', 'run', 'SELECT $1', '{\"a\": 1}')",
        r#"succeeded|{"a": 1}"#,
    ),
    (
        "SELECT status, response FROM public.idem_run('payments', 'do', 'CREATE TEMP TABLE t ()', on_error => 'record')",
        "succeeded|",
    ),
    (
        "SELECT status, response OPERATOR(pg_catalog.->>) 'sqlstate' FROM public.idem_run('payments', 'fail', 'SELECT 1/0', on_error => 'record', wait => '1 s', ttl => '1 h')",
        "failed|22012",
    ),
    (
        "WITH b AS (SELECT token FROM public.idem_begin('payments', 'lease', lease => '1 h')) SELECT public.idem_extend('payments', 'lease', token, '2 h') IS NOT NULL FROM b",
        "t",
    ),
    (
        "WITH b AS (SELECT token FROM public.idem_begin('payments', 'short', lease => '1 h')) SELECT public.idem_record('payments', 'short', '1', token => token) IS NOT NULL FROM b",
        "t",
    ),
    ("SELECT FROM public.idem_begin('payments', 'left', lease => '10 ms')", ""),
    ("SELECT status, response FROM public.idem_settle('payments', 'settled', response => '3')", "cancelled|3"),
    ("BEGIN; SELECT public.idem_claim('payments', 'c'); SELECT FROM public.idem_record('payments', 'c'); COMMIT", ""),
    (
        "SELECT status, response FROM public.idem_outcomes('payments', prefix => 'k', status => 'succeeded', since => '-infinity', before => 'infinity')",
        "succeeded|2",
    ),
    (
        "SELECT public.idem_explain('payments', 'k') OPERATOR(pg_catalog.->) 'begin_answers' OPERATOR(pg_catalog.->>) 'status'",
        "succeeded",
    ),
    (
        "SELECT public.idem_explain('payments', 'left') OPERATOR(pg_catalog.->) 'unfinished' OPERATOR(pg_catalog.->>) 'attempt'",
        "1",
    ),
    ("SELECT public.idem_once('mails', 'm'), public.idem_once('mails', 'm')", "t|f"),
    ("SELECT ord, request FROM public.idem_once_many('mails', '{m,n,n,o}')", "2|n\n4|o"),
    ("SELECT public.idem_generate_id() IS NOT NULL, cardinality(public.idem_generate_ids(3))", "t|3"),
    (
        "SELECT public.idem_key('{\"b\": 1, \"a\": 2}') OPERATOR(pg_catalog.=) public.idem_key('{\"a\": 2, \"b\": 1}')",
        "t",
    ),
    ("SELECT public.idem_drop_session('mails'); SELECT public.idem_create_session('mails', inbox => true)", ""),
    ("SELECT public.idem_once('mails', 'm')", "f"),
    ("SELECT public.idem_ready()", "t"),
];

// Goal: an attacker who can put objects on the search path of a caller takes over nothing of the extension.
// Method: all functions are called with a schema full of traps in front, even in front of pg_catalog. The
// extension is also created and dropped like this.
async fn a_hostile_search_path_changes_nothing(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.psql("postgres", TRAPS)?;
    server.psql("postgres", "CREATE ROLE app LOGIN; CREATE ROLE boss LOGIN")?;
    let superuser = trapped(&server, "postgres").await?;
    ensure!(
        superuser.sqlstate("SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text").await? == "HIJAK",
        "there is no trap"
    );
    ensure!(superuser.sqlstate("SELECT 'a'::text").await? == "HIJAK", "there is no trap");

    superuser.text("CREATE EXTENSION idempotence SCHEMA public").await?;
    superuser
        .text(
            "SELECT public.idem_grant('app'), public.idem_grant('app', 'monitor'), public.idem_grant('boss', 'admin')",
        )
        .await?;
    let app = trapped(&server, "app").await?;
    for (call, answer) in CALLS {
        let found = app.text(call).await?;
        ensure!(found == answer, "{call} gives {found}");
    }
    for (call, state) in [
        ("begin('payments', 'k', payload => '2')", "ID001"),
        ("run('payments', 'x', 'SELECT 1', on_error => 'nothing')", "22023"),
        ("run('payments', 'x', 'SELECT 1 UNION SELECT 2')", "21000"),
        ("run('payments', 'x', 'SELECT 1/0')", "22012"),
        ("run('payments', NULL, 'SELECT 1')", "22004"),
        ("once('payments', 'k')", "22023"),
        ("begin('nobody', 'k')", "42704"),
    ] {
        let found = app.sqlstate(&format!("SELECT FROM public.idem_{call}")).await?;
        ensure!(found == state, "idem_{call} gives {found} instead of {state}");
    }
    let seen = app.text("SELECT session, kind, ttl FROM idempotence.sessions").await?;
    ensure!(seen.lines().any(|line| line == "payments|standing|2 days"), "{seen}");
    app.text("SELECT FROM idempotence.outcomes").await?;

    let boss = trapped(&server, "boss").await?;
    ensure!(boss.text("SELECT public.idem_forget('payments', 'k', 'a test')").await? == "t");
    ensure!(boss.text("SELECT public.idem_force_record('payments', 'left', 'a test') IS NOT NULL").await? == "t");
    ensure!(boss.text("SELECT public.idem_force_release('payments', 'left', 'a test')").await? == "f");
    ensure!(
        boss.text("SELECT public.idem_force_release_prefix('payments', 'lea', 'a test', live => true)").await? == "1"
    );
    ensure!(boss.text("SELECT public.idem_redact('payments', 'settled', 'a test')").await? == "t");
    ensure!(boss.text("SELECT public.idem_redact_prefix('payments', 'r', 'a test')").await? == "1");
    ensure!(boss.text("SELECT public.idem_forget_prefix('payments', 'r', 'a test')").await? == "1");
    let import = "SELECT imported, present, expired FROM public.idem_import('payments', 'SELECT ''i'' AS key, ''1'' AS response, true AS failed', 'a test')";
    ensure!(boss.text(import).await? == "1|0|0");
    let import = "SELECT imported, present, expired FROM public.idem_import('mails', 'SELECT ''i'' AS key', 'a test')";
    ensure!(boss.text(import).await? == "1|0|0");
    ensure!(boss.text("SELECT public.idem_purge_audit('2020-01-01', 'a test')").await? == "0");
    ensure!(boss.text("SELECT public.idem_set_persistence('claims', 'unlogged')").await? == "t");
    boss.text("SELECT FROM idempotence.unfinished").await?;
    boss.text("CALL public.idem_sweep()").await?;
    let unwell = boss.text("SELECT name, detail FROM idempotence.health WHERE level OPERATOR(pg_catalog.>) 0").await?;
    ensure!(unwell.is_empty(), "{unwell}");
    // An admin may create a dropped session again. The catalogs tell who is an admin.
    app.text("SELECT public.idem_drop_session('payments')").await?;
    boss.text("SELECT public.idem_create_session('payments', ttl => '2 days')").await?;
    // Each step of the sweep has something to do.
    let plain = server.connect("postgres").await?;
    plain.text("SELECT idem_create_session('brief'), idem_drop_session('brief')").await?;
    for age in [
        "UPDATE idempotence.segment SET opened_at = opened_at - interval '1 year' WHERE current",
        "UPDATE idempotence.segment SET closed_at = closed_at - interval '1 year', ends_at = ends_at - interval '1 year' WHERE NOT current",
        "INSERT INTO idempotence.outcome_0 SELECT * FROM idempotence.outcome_0 WHERE false",
        "UPDATE idempotence.session SET ended_at = ended_at - interval '1 year' WHERE client IS NOT NULL",
    ] {
        plain.text(age).await?;
        boss.text("CALL public.idem_sweep()").await.with_context(|| age.to_owned())?;
    }
    let turned = plain.text("SELECT count(*) FROM idempotence.segment WHERE current AND number = 0").await?;
    ensure!(turned == "0", "the ring has not turned");
    ensure!(superuser.sqlstate("SELECT public.idem_grant('app', 'everything')").await? == "22023");
    superuser.text("SELECT public.idem_revoke('app')").await?;
    ensure!(app.sqlstate("SELECT public.idem_generate_id()").await? == "42501");
    superuser
        .text(
            "INSERT INTO idempotence.secret SELECT * FROM idempotence.secret WHERE false;
             INSERT INTO idempotence.audit SELECT * FROM idempotence.audit; DELETE FROM idempotence.session",
        )
        .await?;
    superuser.text("DROP EXTENSION idempotence").await?;
    Ok(())
}

async fn trapped(server: &Cluster, role: &str) -> Result<Connection> {
    let connection = server.connect_as("postgres", role).await?;
    connection.text("SET search_path = trap, pg_catalog, public").await?;
    Ok(connection)
}

// Goal: the owner of the tables' schema could replace the tables, so the schema must belong to the role that
// creates the extension.
// Method: a schema of another role is refused, and accepted when it has a new owner.
async fn the_schema_of_the_tables_must_not_be_anothers(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.psql("postgres", "CREATE ROLE other; CREATE SCHEMA idempotence AUTHORIZATION other")?;
    let superuser = server.connect("postgres").await?;
    for schema in ["public", "idempotence"] {
        let create = format!("CREATE EXTENSION idempotence SCHEMA {schema}");
        ensure!(superuser.sqlstate(&create).await? == "42501", "in schema {schema}");
    }
    superuser
        .text("ALTER SCHEMA idempotence OWNER TO CURRENT_USER; CREATE EXTENSION idempotence SCHEMA public")
        .await?;
    Ok(())
}
