//! What a role puts into the way of the extension's SQL: operators, functions, types and relations of the names that this
//! SQL uses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version};
use idempotence_demo::server::SUPERUSER;

// Goal: while the extension acts as its owner, a caller's search_path has no say in what an operator means.
// Method: after half a restore, whoever makes a session has the notes of the restore read. The caller's operator would
// make him superuser.
pub async fn an_operator_of_a_caller_makes_nobody_superuser(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.psql("postgres", "CREATE ROLE app LOGIN")?;
    server.psql(
        "postgres",
        "CREATE EXTENSION idempotence; SELECT idem_grant('app'); GRANT CREATE ON SCHEMA public TO app",
    )?;
    server.psql("postgres", HALF_A_RESTORE)?;
    let app = server.connect_as("postgres", "app").await?;
    app.text(
        "CREATE FUNCTION public.eqf(bigint, int) RETURNS bool LANGUAGE plpgsql AS
             $$ BEGIN RAISE WARNING 'running as %', current_user; EXECUTE 'ALTER ROLE app SUPERUSER'; RETURN true; END $$;
         CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = int, FUNCTION = public.eqf);
         SET search_path = public, pg_catalog",
    )
    .await?;
    app.text("SELECT idem_create_session('newsess', ttl => '1 day')").await?;
    let promoted = server.psql("postgres", "SELECT rolsuper FROM pg_roles WHERE rolname = 'app'")?;
    ensure!(promoted.trim() == "f", "the caller is superuser");
    Ok(())
}

/// A note of half a restore, and of a sweep that has found rows without a session.
const HALF_A_RESTORE: &str = "INSERT INTO idempotence.restore (noted_at, looked_at, orphans, brought)
                              SELECT s.opened_at, s.opened_at, 1, 'session' FROM idempotence.segment s LIMIT 1";

/// What the log has where a trap was sprung: who ran it follows.
const SPRUNG: &str = "SPRUNG as ";

// Goal: nothing that a role puts into the way is executed with the rights of another role.
// Method: the role makes operators, functions, types and relations of all names that the extension's SQL has, read from
// its source. Each notes in the log who runs it. Every function is called: by the role, with its own schema in front
// even of pg_catalog, and by an admin, a monitor and a superuser, with the path that everybody has. The worker and a
// table that is written by SQL are there as well.
pub async fn what_a_role_puts_in_the_way_is_run_by_nobody_else(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    server.psql(
        "postgres",
        "CREATE ROLE app LOGIN; CREATE ROLE boss LOGIN; CREATE ROLE watch LOGIN; CREATE SCHEMA idem;
         CREATE EXTENSION idempotence SCHEMA idem; GRANT CREATE ON SCHEMA public TO app;
         SELECT idem.idem_grant('app'), idem.idem_grant('boss', 'admin'), idem.idem_grant('watch', 'monitor')",
    )?;
    let superuser = server.connect("postgres").await?;
    superuser.text("SET search_path = ''").await?;
    let app = server.connect_as("postgres", "app").await?;
    set_traps(&app).await?;
    app.text("SET search_path = public, pg_catalog; SELECT 1::int8 = 1::int4; SELECT 'a'::text").await?;
    ensure!(server.log().matches(&format!("{SPRUNG}app")).count() > 1, "there is no trap");

    // The second round writes by SQL, as where somebody has added to the tables.
    for (round, path) in [("1", "public, pg_catalog"), ("2", "pg_temp, public, pg_catalog")] {
        if round == "2" {
            for table in ["outcome_0", "outcome_1", "outcome_2", "lease", "checkpoint", "session", "reply", "audit"] {
                superuser
                    .text(&format!("CREATE INDEX ON idempotence.{table} ((1)) WHERE xmax IS NULL"))
                    .await
                    .or(superuser.text(&format!("CREATE INDEX ON idempotence.{table} ((1))")).await)?;
            }
        }
        app.text(&format!("SET search_path = {path}")).await?;
        // Whoever makes a session looks at what a restore has left, until the next sweep has looked.
        superuser.text(HALF_A_RESTORE).await?;
        for call in OF_THE_ROLE {
            let call = call.replace('@', round);
            app.text(&call).await.with_context(|| format!("round {round}"))?;
        }
        let client = app.text("SELECT session FROM idem.idem_register('c')").await?;
        for call in OF_A_CLIENT {
            app.text(&call.replace('@', &client)).await?;
        }
        // Somebody is at work in a session that is to be exported.
        let worker = server.connect_as("postgres", "app").await?;
        worker.text(&format!("BEGIN; SELECT idem.idem_claim('open{round}', 'k')")).await?;
        app.text(&format!(
            "SELECT idem.idem_explain('open{round}', 'k'); SELECT idem.idem_drop_session('open{round}')"
        ))
        .await?;
        for (waiter, path) in [(&app, path), (&server.connect_as("postgres", "boss").await?, "\"$user\", public")] {
            waiter.text(&format!("SET search_path = {path}; SET idempotence.wait = '50ms'")).await?;
            let export = format!("SELECT * FROM idem.idem_export('open{round}', 'a test')");
            let state = waiter.sqlstate(&export).await?;
            ensure!(state == "55006", "{export}: {state}");
        }
        worker.text("ROLLBACK").await?;
        let boss = server.connect_as("postgres", "boss").await?;
        for call in OF_AN_ADMIN {
            boss.text(&call.replace('@', round)).await?;
        }
        for age in [
            "UPDATE idempotence.segment SET opened_at = opened_at - interval '1 year' WHERE current",
            "UPDATE idempotence.segment SET closed_at = closed_at - interval '1 year', ends_at = ends_at - interval '1 year' WHERE NOT current",
            "UPDATE idempotence.session SET ended_at = ended_at - interval '1 year' WHERE client IS NOT NULL",
            "INSERT INTO idempotence.outcome_0 SELECT * FROM idempotence.outcome_0 WHERE false",
        ] {
            superuser.text(age).await?;
            boss.text("CALL idem.idem_sweep()").await?;
        }
        // Every function, whatever it says to these arguments, and every view.
        for role in ["app", "watch", "boss", SUPERUSER] {
            let connection = server.connect_as("postgres", role).await?;
            let path = if role == "app" { path } else { "\"$user\", public" };
            for session in [format!("s{round}"), format!("mail{round}"), client.clone()] {
                for call in superuser.text(&calls(&session)).await?.lines() {
                    let set = format!("SET search_path = {path}; SET idempotence.wait = '50ms'");
                    connection.text(&set).await?;
                    let _ = connection.try_text(call).await;
                    connection.text("ROLLBACK").await?;
                }
            }
        }
    }
    superuser.text("SELECT idem.idem_grant('app'), idem.idem_revoke('watch')").await?;
    server.wait_for("postgres", "SELECT idempotence.last_sweep() IS NOT NULL", "t").await?;
    let log = server.log();
    let taken_over: Vec<&str> =
        log.lines().filter(|line| line.contains(SPRUNG) && !line.contains(&format!("{SPRUNG}app "))).collect();
    ensure!(taken_over.is_empty(), "run by others:\n{}", taken_over.join("\n"));
    Ok(())
}

/// What the role calls with its own sessions.
const OF_THE_ROLE: [&str; 27] = [
    "SELECT idem.idem_create_session('s@'), idem.idem_create_session('mail@', inbox => true),
            idem.idem_create_session('open@'), idem.idem_create_session('gone@')",
    "SELECT idem.idem_alter_session('s@', ttl => '2 days')",
    "SELECT idem.idem_create_journal('public.j@', 'tenant', 'pg_catalog.int4'); SELECT idem.idem_create_session('j@', journal => 'public.j@')",
    "BEGIN; SELECT idem.idem_begin('s@', 'k', payload => '1', wait => '1 s'); SELECT idem.idem_record('s@', 'k', '2', ttl => '1 day'); COMMIT",
    "BEGIN; SELECT idem.idem_begin('gone@', 'k'); SELECT idem.idem_record('gone@', 'k', '2'); COMMIT",
    "BEGIN; SELECT idem.idem_begin('s@', 42); SELECT idem.idem_checkpoint('s@', 42, 'p', '1'); COMMIT",
    "BEGIN; SELECT idem.idem_claim('s@', 'r'); SELECT idem.idem_release('s@', 'r'); COMMIT",
    "SELECT idem.idem_run('s@', 'run', 'SELECT $1', '{\"a\": 1}'), idem.idem_run('s@', 'fails', 'SELECT 1/0', on_error => 'record')",
    "SELECT idem.idem_extend('s@', 'l', (idem.idem_begin('s@', 'l', lease => '1 h')).token, '2 h')",
    "SELECT idem.idem_record('s@', 'm', '1', token => (idem.idem_begin('s@', 'm', lease => '1 h')).token)",
    "SELECT idem.idem_begin('s@', 'left', lease => '10 ms')",
    "SELECT idem.idem_begin('s@', 'kept', lease => '1 h')",
    "SELECT idem.idem_settle('s@', 'settled', response => '3')",
    "SELECT idem.idem_lookup('s@', 'k'), idem.idem_explain('s@', 'k'), idem.idem_explain('s@', 'l')",
    "SELECT idem.idem_outcomes('s@', prefix => 'k', status => 'succeeded', since => '-infinity', before => 'infinity')",
    "SELECT idem.idem_once('mail@', 'm'), idem.idem_once('mail@', 'm')",
    "SELECT idem.idem_once_many('mail@', '{m,n,n,o}')",
    "SELECT idem.idem_once_many('mail@', '{1,2,3,4,5,6,7,8,9,10,11,12}')",
    "SELECT idem.idem_redact('s@', 'k', 'a test'), idem.idem_redact_prefix('s@', 'se', 'a test')",
    "SELECT idem.idem_drop_session('gone@')",
    "SELECT * FROM idem.idem_export('gone@', 'a test')",
    "SELECT idem.idem_generate_id(), idem.idem_generate_ids(3), idem.idem_key('[1]'), idem.idem_fingerprint('[1]')",
    "SELECT * FROM idempotence.sessions; SELECT * FROM idempotence.outcomes",
    "SELECT * FROM idempotence.unfinished; SELECT * FROM idempotence.in_flight",
    "SELECT * FROM idempotence.stats; SELECT * FROM idempotence.errors",
    "SELECT idem.idem_ready(), idem.idem_node()",
    "SELECT idem.idem_create_session('gone@')",
];

/// What the role calls with a client session.
const OF_A_CLIENT: [&str; 5] = [
    "SELECT idem.idem_run('@', '1', 'SELECT 1'), idem.idem_run('@', '2', 'SELECT 2')",
    "SELECT idem.idem_begin('@', 3, lease => '10 ms')",
    "SELECT idem.idem_allocate('@', 2, 'other'), idem.idem_ack('@', 1), idem.idem_position('@')",
    "SELECT idem.idem_heartbeat('@'), idem.idem_explain('@', 2), idem.idem_outcomes('@')",
    "SELECT idem.idem_register('c', resume => true); SELECT * FROM idempotence.sessions",
];

/// What an admin calls, with the sessions of the role.
const OF_AN_ADMIN: [&str; 12] = [
    "SELECT idem.idem_explain('s@', 'k')",
    "SELECT idem.idem_forget('s@', 'k', 'a test'), idem.idem_forget('mail@', 'm', 'a test')",
    "SELECT idem.idem_force_record('s@', 'left', 'a test'), idem.idem_force_release('s@', 'kept', 'a test', live => true)",
    "SELECT idem.idem_redact_prefix('s@', 'r', 'a test'), idem.idem_forget_prefix('s@', 'r', 'a test')",
    "SELECT idem.idem_import('s@', 'SELECT ''i'' AS key, ''1'' AS response, true AS failed', 'a test')",
    "SELECT idem.idem_import('mail@', 'SELECT ''i'' AS key', 'a test')",
    "SELECT idem.idem_force_release_prefix('s@', '', 'a test', live => true), idem.idem_force_release_prefix('s@', '', 'a test')",
    "SELECT idem.idem_purge_audit('2020-01-01', 'a test')",
    "SELECT idem.idem_set_persistence('claims', 'unlogged')",
    "SELECT idem.idem_accept_restore('a test')",
    "SELECT * FROM idempotence.health; SELECT * FROM idempotence.segments; SELECT * FROM idempotence.audit",
    "SELECT * FROM idempotence.sessions; SELECT * FROM idempotence.unfinished; SELECT * FROM idempotence.outcomes",
];

/// The query for a call of every function with one session, and for a look at every view.
pub fn calls(session: &str) -> String {
    format!(
        "SELECT format('%s %s.%s(%s)', CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, p.pronamespace::regnamespace,
                  p.proname, string_agg(format('%I => %s::%s', a.name, quote_literal(
                    CASE WHEN a.name = 'session' THEN '{session}'
                         WHEN a.name = 'role' THEN 'watch'
                         WHEN a.name IN ('command', 'query') THEN 'SELECT 1'
                         WHEN a.type LIKE '%[]' THEN '{{}}'
                         WHEN a.type = 'uuid' THEN '01890a5d-ac96-774b-bcce-b302099a8057'
                         WHEN a.type = 'boolean' THEN 'false'
                         WHEN a.type = 'interval' THEN '1 hour'
                         WHEN a.type = 'timestamp with time zone' THEN '2020-01-01'
                         WHEN a.type = 'regclass' THEN 'pg_class'
                         WHEN a.type = 'idem_ticket' THEN '(,,,,,,,,)'
                         ELSE '7' END), a.type), ', ' ORDER BY a.place) FILTER (WHERE a.place IS NOT NULL))
         FROM idempotence.function_level l JOIN pg_proc p ON p.oid = l.function
         LEFT JOIN LATERAL (SELECT n.name, n.place,
                                   CASE n.type WHEN 'anycompatiblearray'::regtype THEN 'pg_catalog.text[]' ELSE n.type::regtype::text END AS type
                            FROM unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) WITH ORDINALITY n (name, type, place)
                            WHERE n.place <= p.pronargs - p.pronargdefaults) a ON true
         WHERE p.proname NOT IN ('idem_revoke', 'idem_drop_session', 'idem_close') AND p.prorettype <> 'internal'::regtype
         GROUP BY p.oid
         UNION ALL SELECT format('SELECT * FROM %s', c.oid::regclass) FROM pg_class c
         WHERE c.relnamespace = 'idempotence'::regnamespace AND c.relkind = 'v'"
    )
}

/// Makes the traps: in schema public, and as temporary objects.
async fn set_traps(app: &Connection) -> Result<()> {
    let named = Named::in_the_source()?;
    app.text("SET search_path = ''").await?;
    app.text(&format!(
        "CREATE FUNCTION public.spring(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = ''
         AS $$ BEGIN RAISE LOG '{SPRUNG}% by %', current_user, what; RETURN true; END $$"
    ))
    .await?;
    for schema in ["public", "pg_temp"] {
        let list = |names: &BTreeSet<String>| {
            let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
            format!("ARRAY[{}]::text[]", names.join(", "))
        };
        let (functions, types) = (list(&named.functions), list(&named.types));
        let (relations, operators) = (list(&named.relations), list(&named.operators));
        app.text(&format!(
            "DO $do$
             DECLARE
               f record; a text; b text; o text; body text;
               types constant text[] := '{{text,name,oid,int2,int4,int8,bool,uuid,timestamptz,bytea,\"\\\"char\\\"\",jsonb,interval,regclass,regrole,float8,numeric,tid,xid,text[],name[],oid[],uuid[]}}';
             BEGIN
               -- The functions of these names, with the same arguments.
               FOR f IN SELECT DISTINCT p.proname, p.proretset, oidvectortypes(p.proargtypes) AS args, p.prorettype::regtype::text AS result
                        FROM pg_proc p WHERE p.proname = ANY ({functions}) LOOP
                 body := CASE WHEN f.proretset OR f.result = 'void' THEN 'RETURN' WHEN f.result = 'boolean' THEN 'RETURN true' ELSE 'RETURN NULL' END;
                 BEGIN
                   EXECUTE format('CREATE FUNCTION {schema}.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM public.spring(%L); %s; END $f$',
                     f.proname, f.args, CASE WHEN f.proretset THEN 'SETOF' END, f.result, f.proname, body);
                 EXCEPTION WHEN OTHERS THEN
                   -- Its arguments are of a kind that no such function may have.
                   FOREACH a IN ARRAY '{{text,\"text, text\",\"text, text, text\",text[],anyelement,anyarray}}'::text[] LOOP
                     BEGIN
                       EXECUTE format('CREATE FUNCTION {schema}.%I(%s) RETURNS text LANGUAGE plpgsql AS $f$ BEGIN PERFORM public.spring(%L); RETURN NULL; END $f$',
                         f.proname, a, f.proname);
                     EXCEPTION WHEN OTHERS THEN NULL;
                     END;
                   END LOOP;
                 END;
               END LOOP;
               FOREACH a IN ARRAY types LOOP
                 FOREACH b IN ARRAY types LOOP
                   EXECUTE format('CREATE FUNCTION {schema}.compared(%s, %s) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RETURN public.spring(%L); END $f$',
                     a, b, a || ' and ' || b);
                   FOREACH o IN ARRAY '{{=,<>,<,<=,>,>=}}'::text[] LOOP
                     EXECUTE format('CREATE OPERATOR {schema}.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = {schema}.compared)', o, a, b);
                   END LOOP;
                 END LOOP;
                 FOREACH b IN ARRAY CASE WHEN a = 'text' THEN types ELSE ARRAY[a, 'text', 'int4', 'interval'] END LOOP
                   EXECUTE format('CREATE OR REPLACE FUNCTION {schema}.made(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM public.spring(%L); RETURN $1; END $f$',
                     a, b, a, a || ' with ' || b);
                   FOREACH o IN ARRAY {operators} LOOP
                     BEGIN
                       EXECUTE format('CREATE OPERATOR {schema}.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = {schema}.made)', o, a, b);
                     EXCEPTION WHEN duplicate_function THEN NULL;
                     END;
                   END LOOP;
                 END LOOP;
               END LOOP;
               -- Types, each value of which springs the trap.
               FOR a IN SELECT t.typname FROM pg_type t WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b'
                                                          AND t.typname = ANY ({types} || types) LOOP
                 EXECUTE format('CREATE DOMAIN {schema}.%I AS pg_catalog.%1$I CHECK (public.spring(%L))', a, 'type ' || a);
               END LOOP;
               FOREACH a IN ARRAY {relations} LOOP
                 EXECUTE format('CREATE VIEW {schema}.%I AS SELECT public.spring(%L)', a, a);
               END LOOP;
             END
             $do$"
        ))
        .await
        .with_context(|| format!("traps in {schema}"))?;
    }
    // A cast of a type of the role's own, which it may make.
    app.text(
        "CREATE TYPE public.own AS ENUM ('a');
         CREATE FUNCTION public.cast_to_text(public.own) RETURNS pg_catalog.text LANGUAGE plpgsql
           AS 'BEGIN PERFORM public.spring(''cast''); RETURN ''a''; END';
         CREATE FUNCTION public.cast_to_jsonb(public.own) RETURNS pg_catalog.jsonb LANGUAGE plpgsql
           AS 'BEGIN PERFORM public.spring(''cast''); RETURN ''1''; END';
         CREATE CAST (public.own AS pg_catalog.text) WITH FUNCTION public.cast_to_text(public.own) AS IMPLICIT;
         CREATE CAST (public.own AS pg_catalog.jsonb) WITH FUNCTION public.cast_to_jsonb(public.own) AS IMPLICIT",
    )
    .await?;
    Ok(())
}

/// What the extension's SQL names.
#[derive(Default)]
struct Named {
    functions: BTreeSet<String>,
    types: BTreeSet<String>,
    relations: BTreeSet<String>,
    operators: BTreeSet<String>,
}

impl Named {
    fn in_the_source() -> Result<Named> {
        let mut named = Named::default();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut places = vec![root.join("src"), root.join("sql")];
        while let Some(place) = places.pop() {
            if place.is_dir() {
                for entry in fs::read_dir(place)? {
                    places.push(entry?.path());
                }
            } else {
                named.add(&fs::read_to_string(place)?);
            }
        }
        ensure!(named.functions.len() > 30 && named.types.len() > 10, "the names are not found");
        ensure!(named.relations.len() > 30 && named.operators.len() > 10, "the names are not found");
        Ok(named)
    }

    fn add(&mut self, source: &str) {
        for schema in ["pg_catalog.", "idempotence."] {
            for (at, _) in source.match_indices(schema) {
                let (before, after) = (&source[..at], &source[at + schema.len()..]);
                let length = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                let (name, after) = after.split_at(length);
                if before.ends_with("OPERATOR(") {
                    self.operators.insert(after.split(')').next().unwrap_or_default().to_owned());
                } else if name.is_empty() || name.ends_with('_') {
                } else if before.ends_with("::") {
                    self.types.insert(name.to_owned());
                } else if after.starts_with('(') {
                    self.functions.insert(name.to_owned());
                } else if ["FROM ", "JOIN ", "INTO ", "UPDATE "].iter().any(|word| before.ends_with(word)) {
                    self.relations.insert(name.to_owned());
                }
            }
        }
        // The source may name one by a variable.
        self.operators.retain(|operator| !operator.is_empty() && !operator.contains('{'));
    }
}
