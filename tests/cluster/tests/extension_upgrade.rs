//! ALTER EXTENSION UPDATE: from each released version, with the rows that this version kept.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::dump::dump;
use idempotence_cluster_tests::text::lines_only_in;
use idempotence_cluster_tests::{Cluster, Connection, Version, fixture, frozen, on_each_version};

on_each_version!(
    an_upgraded_database_equals_a_fresh_one,
    what_a_role_was_granted_goes_on,
    a_restart_before_the_update_is_told_and_does_no_harm,
    a_library_older_than_the_tables_is_told,
    a_dump_of_a_released_version_restores_into_this_one,
    what_depends_on_a_function_that_is_made_anew_is_named,
);

const RELEASED: &str = "1.0.0";

/// Starts a preloaded server, which visits each database every second.
fn start(version: Version) -> Result<Cluster> {
    frozen::install(version, RELEASED)?;
    let server = Cluster::start_preloaded(version)?;
    fixture::create_roles(&server)?;
    Ok(server)
}

fn create_released(server: &Cluster, database: &str) -> Result<()> {
    server.psql("postgres", &format!("CREATE DATABASE {database}"))?;
    server.psql(database, &format!("CREATE EXTENSION idempotence VERSION '{RELEASED}'"))?;
    Ok(())
}

fn version_in(server: &Cluster, database: &str) -> Result<String> {
    let version = server.psql(database, "SELECT extversion FROM pg_extension WHERE extname = 'idempotence'")?;
    Ok(version.trim_end().into())
}

/// All catalog entries of the extension, one per line, without what differs between databases anyway: oids,
/// and the order of entries that have no order.
const CATALOG: &str = "
CREATE TEMPORARY TABLE member AS
  SELECT d.classid, d.objid, e.oid AS extension FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
  WHERE e.extname = 'idempotence' AND d.deptype = 'e' ;
CREATE TEMPORARY VIEW relation AS SELECT c.* FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid;
CREATE TEMPORARY VIEW part AS
  SELECT c.oid::regclass::text AS name, c.* FROM relation c
  UNION ALL SELECT i.oid::regclass::text, i.* FROM pg_class i JOIN pg_index x ON x.indexrelid = i.oid JOIN relation c ON c.oid = x.indrelid
  UNION ALL SELECT concat('toast of ', c.oid::regclass), t.* FROM pg_class t JOIN relation c ON c.reltoastrelid = t.oid
  UNION ALL SELECT t.oid::regclass::text, t.* FROM pg_class t JOIN pg_type y ON y.typrelid = t.oid AND t.relkind = 'c' JOIN member m ON m.classid = 'pg_type'::regclass AND m.objid = y.oid;
SELECT 'extension', extversion, extowner::regrole, extnamespace::regnamespace, extrelocatable,
       ARRAY(SELECT ROW(u.t::regclass, extcondition[u.n])::text FROM unnest(extconfig) WITH ORDINALITY u (t, n) ORDER BY 1)
  FROM pg_extension WHERE extname = 'idempotence';
SELECT 'member', pg_describe_object(classid, objid, 0), coalesce(obj_description(objid, classid::regclass::text::name), '')
  FROM member ORDER BY 2;
SELECT 'function', p.oid::regprocedure, pg_get_functiondef(p.oid), p.proowner::regrole, p.prosrc, p.probin, p.prokind, p.prosecdef,
       p.proleakproof, p.proisstrict, p.proretset, p.provolatile, p.proparallel, p.procost, p.prorows, p.proconfig, p.proargnames, p.proargmodes
  FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid ORDER BY p.oid::regprocedure::text;
SELECT 'relation', c.name, c.relkind, c.relpersistence, c.relowner::regrole, c.reloptions, c.relnatts,
       c.relhastriggers, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, c.relispartition, a.amname, c.reltablespace,
       CASE WHEN c.relkind = 'i' THEN pg_get_indexdef(c.oid) WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END
  FROM part c LEFT JOIN pg_am a ON a.oid = c.relam ORDER BY 2;
SELECT 'column', c.name, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname, a.attnum, a.atttypid::regtype, a.atttypmod,
       a.attnotnull, a.attstorage, a.attcompression, a.attcollation::regcollation, a.attidentity, a.attgenerated, a.attacl, a.attisdropped,
       a.attstattarget, pg_get_expr(d.adbin, d.adrelid), coalesce(col_description(c.oid, a.attnum), '')
  FROM part c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  ORDER BY 2, a.attnum;
SELECT 'constraint', c.conname, c.contype, c.conrelid::regclass, c.convalidated, c.condeferrable, pg_get_constraintdef(c.oid)
  FROM pg_constraint c JOIN relation r ON r.oid = c.conrelid ORDER BY c.conrelid::regclass::text, c.conname;
SELECT 'trigger', t.tgrelid::regclass, t.tgname, t.tgenabled, pg_get_triggerdef(t.oid)
  FROM pg_trigger t JOIN relation r ON r.oid = t.tgrelid ORDER BY t.tgrelid::regclass::text, t.tgname;
SELECT 'rule', r.ev_class::regclass, r.rulename, r.ev_enabled FROM pg_rewrite r JOIN relation c ON c.oid = r.ev_class ORDER BY r.ev_class::regclass::text, 3;
SELECT 'policy', p.polrelid::regclass, p.polname FROM pg_policy p JOIN relation c ON c.oid = p.polrelid ORDER BY p.polrelid::regclass::text, 3;
SELECT 'type', t.oid::regtype, t.typtype, t.typowner::regrole, t.typacl FROM pg_type t JOIN member m ON m.classid = 'pg_type'::regclass AND m.objid = t.oid ORDER BY t.oid::regtype::text;
WITH acl (object, owner, acl) AS (
  SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
  UNION ALL SELECT c.oid::regclass::text, c.relowner, coalesce(c.relacl, acldefault('r', c.relowner)) FROM relation c
  UNION ALL SELECT n.nspname, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner)) FROM pg_namespace n JOIN member m ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid)
SELECT 'privilege', acl.object, a.grantor::regrole, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.privilege_type, a.is_grantable
  FROM acl, aclexplode(acl.acl) a ORDER BY 2, 4, 5;
SELECT 'initial privilege', pg_describe_object(i.classoid, i.objoid, i.objsubid),
       ARRAY(SELECT concat(CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ' ', a.privilege_type) FROM aclexplode(i.initprivs) a ORDER BY 1)
  FROM pg_init_privs i JOIN member m ON m.classid = i.classoid AND m.objid = i.objoid ORDER BY 2;
SELECT 'dependency', pg_describe_object(d.classid, d.objid, d.objsubid), pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype
  FROM pg_depend d JOIN member m ON m.classid = d.classid AND m.objid = d.objid
  WHERE (d.refclassid, d.refobjid) IN (SELECT classid, objid FROM member) ORDER BY 2, 3";

fn catalog(server: &Cluster, database: &str) -> Result<String> {
    server.psql(database, CATALOG)
}

/// A message with the lines that only one of two texts has.
fn difference(left: &str, right: &str) -> String {
    let of = |lines: Vec<&str>| lines.iter().map(|line| format!("  {line}\n")).collect::<String>();
    let (left, right) = (of(lines_only_in(left, right)), of(lines_only_in(right, left)));
    format!("only in the fresh one:\n{left}only in the upgraded one:\n{right}")
}

// Goal: an upgraded database equals a new one, object by object, whichever superuser upgrades it.
// Method: the catalogs are compared. The levels were granted before the update in one database, and after the
// creation in the other.
async fn an_upgraded_database_equals_a_fresh_one(version: Version) -> Result<()> {
    let server = start(version)?;
    server.psql("postgres", "CREATE ROLE another SUPERUSER LOGIN")?;
    server.create_database("fresh")?;
    fixture::grant(&server.connect("fresh").await?).await?;
    for (database, role) in [("upgraded", "postgres"), ("upgraded_by_another", "another")] {
        create_released(&server, database)?;
        fixture::grant(&server.connect(database).await?).await?;
        server.psql_as(database, role, "ALTER EXTENSION idempotence UPDATE")?;
        ensure!(version_in(&server, database)? == version_in(&server, "fresh")?);
        let (fresh, upgraded) = (catalog(&server, "fresh")?, catalog(&server, database)?);
        ensure!(fresh == upgraded, "{database}: {}", difference(&fresh, &upgraded));
    }
    let seen = catalog(&server, "fresh")?;
    for kind in ["extension|", "member|", "function|", "relation|", "column|", "constraint|", "trigger|", "privilege|"]
    {
        ensure!(seen.lines().any(|line| line.starts_with(kind)), "nothing is compared: {kind}");
    }
    Ok(())
}

// Goal: an update neither takes a privilege from a role, nor gives back a privilege that was revoked by hand.
// Method: roles with levels, with single functions, with a level but for one function, and with the grant
// option.
async fn what_a_role_was_granted_goes_on(version: Version) -> Result<()> {
    let server = start(version)?;
    create_released(&server, "shop")?;
    server.psql(
        "shop",
        "CREATE ROLE part; CREATE ROLE less; CREATE ROLE lender;
         SELECT idem_grant('app'), idem_grant('less'), idem_grant('watcher', 'monitor'), idem_grant('boss', 'admin');
         GRANT EXECUTE ON FUNCTION idem_lookup(text, text, text) TO part;
         REVOKE ALL ON FUNCTION idem_create_session FROM less;
         GRANT EXECUTE ON FUNCTION idem_create_session TO lender WITH GRANT OPTION;
         -- What somebody has made under the name that the script uses for a table of its own is not for the script.
         CREATE FUNCTION public.trap() RETURNS oid LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''trapped''; END';
         CREATE VIEW public.upgrade_granted AS
           SELECT public.trap() AS function, 'idem_forget'::name AS name, 'admin' AS level, 0::oid AS grantee, false AS is_grantable;
         ALTER EXTENSION idempotence UPDATE",
    )?;
    let may = |role: &str, function: &str| -> Result<String> {
        let query = format!(
            "SELECT string_agg(DISTINCT has_function_privilege('{role}', oid, 'EXECUTE')::text, ',') FROM pg_proc WHERE proname = '{function}'"
        );
        Ok(server.psql("shop", &query)?.trim_end().to_owned())
    };
    for (role, function, wanted) in [
        ("app", "idem_create_session", "true"),
        ("app", "idem_begin", "true"),
        ("boss", "idem_begin", "true"),
        ("boss", "idem_forget", "true"),
        ("app", "idem_forget", "false"),
        ("less", "idem_create_session", "false"),
        ("less", "idem_begin", "true"),
        ("lender", "idem_create_session", "true"),
        ("lender", "idem_begin", "false"),
        ("watcher", "idem_begin", "false"),
        ("stranger", "idem_create_session", "false"),
        ("boss", "keep_grant", "false"),
    ] {
        let found = may(role, function)?;
        ensure!(found == wanted, "{role} and {function}: {found}");
    }
    // A privilege on one overload gives no privilege on the others, nor on a function of the same level.
    ensure!(may("part", "idem_lookup")? == "false,true");
    ensure!(may("part", "idem_settle")? == "false");
    // A function or a view that is new goes to those who had all of its level.
    ensure!(may("app", "idem_settle")? == "true" && may("boss", "idem_force_record")? == "true");
    let sees = "SELECT string_agg(has_table_privilege(r, 'idempotence.unfinished', 'SELECT')::text, ' ')
         FROM unnest('{watcher,app,boss,stranger}'::text[]) r";
    ensure!(server.psql("shop", sees)?.trim_end() == "true true true false");
    let sees = "SELECT string_agg(has_table_privilege(r, 'idempotence.health', 'SELECT')::text, ' ')
         FROM unnest('{watcher,app,boss,stranger}'::text[]) r";
    ensure!(server.psql("shop", sees)?.trim_end() == "true false true false");
    // A dump has the privilege as one that an administrator has granted.
    let dump = dump(&server, &server, "shop", &["--schema-only"])?;
    ensure!(dump.contains("FUNCTION public.idem_create_session(") && dump.contains(" TO app;"), "{dump}");
    for line in ["TO lender WITH GRANT OPTION;", "TO app;", "TO boss;"] {
        let granted = dump.lines().any(|dumped| dumped.contains("idem_create_session(") && dumped.ends_with(line));
        ensure!(granted, "no GRANT of idem_create_session {line}");
    }
    Ok(())
}

/// Calls that need the tables, and that a role of level `user` may make.
const CALLS: [&str; 16] = [
    "SELECT * FROM idem_begin('payments', 'paid')",
    "SELECT * FROM idem_begin('payments', 42)",
    "SELECT * FROM idem_lookup('payments', 'paid')",
    "SELECT idem_record('payments', 'paid')",
    "SELECT idem_checkpoint('payments', 'paid', 'p')",
    "SELECT idem_release('payments', 'paid')",
    "SELECT idem_once('mails', 'm1')",
    "SELECT * FROM idem_once_many('mails', '{m1,m9}')",
    "SELECT * FROM idem_run('payments', 'paid', 'SELECT 1')",
    "SELECT idem_create_session('new one')",
    "SELECT idem_alter_session('payments', ttl => '1 day')",
    "SELECT idem_drop_session('payments')",
    "SELECT * FROM idem_register()",
    "SELECT idem_heartbeat('01a20002-48aa-7153-a79a-1975e4344702')",
    "SELECT idem_ack('01a20002-48aa-7153-a79a-1975e4344702', 1)",
    "SELECT * FROM idem_position('01a20002-48aa-7153-a79a-1975e4344702')",
];

async fn ensure_told(connection: &Connection, call: &str, tables: &str, library: &str) -> Result<()> {
    let error = connection.error(call).await?;
    connection.text("ROLLBACK").await?;
    let code = error.code().code();
    ensure!(code == "55000", "{call}: {code} {}", error.message());
    ensure!(error.message().contains(tables) && error.message().contains(library), "{call}: {}", error.message());
    ensure!(error.hint().is_some_and(|hint| !hint.is_empty()), "{call}: no hint");
    Ok(())
}

// Goal: after the replacement of the library and before the update, each call says what to do. The worker
// says it once, and sweeps other databases. After the update, every backend goes on at once, with all that
// was kept.
// Method: rows that the released library has written, all calls, views and triggers, and another database.
async fn a_restart_before_the_update_is_told_and_does_no_harm(version: Version) -> Result<()> {
    let server = start(version)?;
    create_released(&server, "old")?;
    fixture::grant(&server.connect("old").await?).await?;
    let kept = frozen::load(&server, "old", RELEASED)?;
    server.create_database("beside")?;
    let library = version_in(&server, "beside")?;

    let superuser = fixture::connect(&server, "old", "postgres").await?;
    let app = fixture::connect(&server, "old", "app").await?;
    let boss = fixture::connect(&server, "old", "boss").await?;
    for call in CALLS {
        ensure_told(&app, call, RELEASED, &library).await?;
    }
    for call in ["SELECT idem_forget('payments', 'paid', 'a test')", "CALL idem_sweep()"] {
        ensure_told(&boss, call, RELEASED, &library).await?;
    }
    ensure!(app.text("SELECT idem_key('1') IS NOT NULL").await? == "t", "what needs no table");
    // A view shows its rows, or fails with the same error.
    let rows = superuser.text("SELECT count(*) > 5 FROM idempotence.outcomes").await?;
    ensure!(rows == "t", "the view outcomes is empty");
    superuser.text("SELECT count(*) FROM idempotence.sessions; SELECT count(*) FROM idempotence.segments").await?;
    for _ in 0..2 {
        let health = superuser.outcome_of("SELECT count(*) > 0 FROM idempotence.health").await?;
        ensure!(["t", "55000"].contains(&health.as_str()), "the view health: {health}");
    }
    // Triggers refuse restored rows: they must note a restore, and cannot do so before the update.
    superuser.text("BEGIN; UPDATE idempotence.secret SET in_use_since = in_use_since; ROLLBACK").await?;
    ensure_told(
        &superuser,
        "BEGIN; INSERT INTO idempotence.outcome_1 SELECT * FROM idempotence.outcome_2",
        RELEASED,
        &library,
    )
    .await?;

    // The worker goes on with the other database, again and again.
    let told = format!("could not sweep database \"old\": extension \"idempotence\" is at version {RELEASED}");
    server.wait_for_log(&told).await?;
    for _ in 0..3 {
        let now = server.psql("beside", "SELECT clock_timestamp()")?;
        server.wait_for("beside", &format!("SELECT idempotence.last_sweep() > '{}'", now.trim_end()), "t").await?;
    }
    let times = server.log().matches(&told).count();
    ensure!(times == 1, "the worker says it {times} times");

    server.psql("old", "ALTER EXTENSION idempotence UPDATE")?;
    // Every backend goes on at once.
    ensure!(superuser.lookup("theirs", "k").await? == "unknown");
    for connection in [&app, &boss] {
        ensure!(connection.sqlstate("SELECT FROM idem_lookup('theirs', 'k')").await? == "42501");
    }
    ensure!(app.replay("payments", "paid").await? == r#"succeeded|{"ok": true}"#);
    // The worker is told soon, because a backend has found the update.
    server.wait_for_log("sweeps database \"old\" again").await?;
    // Loading the rows has lost nothing, not even what is unlogged.
    ensure!(app.answer(&kept.clients.unsaved, "1").await? == "started|");
    kept.check_works(&server, "old").await?;
    boss.text("CALL idem_sweep()").await?;
    server.psql("old", "DROP EXTENSION idempotence")?;
    Ok(())
}

// Goal: a library that is older than the tables refuses them too, and goes on when it meets tables of its own
// version.
// Method: the version in the catalog is raised by hand and set back, while a backend remembers everything.
async fn a_library_older_than_the_tables_is_told(version: Version) -> Result<()> {
    let server = start(version)?;
    server.create_database("shop")?;
    fixture::grant(&server.connect("shop").await?).await?;
    let app = fixture::connect(&server, "shop", "app").await?;
    app.text("SELECT idem_create_session('payments')").await?;
    app.execute("payments", "a", "1").await?;
    let library = version_in(&server, "shop")?;
    // This imitates the end of the script of a later version, which changes a table.
    let set = |to: &str| {
        format!(
            "SET allow_system_table_mods = on; BEGIN; UPDATE pg_extension SET extversion = '{to}' WHERE extname = 'idempotence';
             ALTER TABLE idempotence.session SET (fillfactor = 100); ALTER TABLE idempotence.session RESET (fillfactor); COMMIT"
        )
    };
    server.psql("shop", &set("999.0.0"))?;
    ensure_told(&app, "SELECT * FROM idem_begin('payments', 'a')", "999.0.0", &library).await?;
    server.wait_for_log("extension \"idempotence\" is at version 999.0.0").await?;
    server.psql("shop", &set(&library))?;
    ensure!(app.replay("payments", "a").await? == "succeeded|1");
    Ok(())
}

// Goal: a dump of a released version can be restored where only the new version is.
// Method: pg_dump of a database that still has the released version, psql into another database, then every
// request is sent again.
async fn a_dump_of_a_released_version_restores_into_this_one(version: Version) -> Result<()> {
    let server = start(version)?;
    create_released(&server, "old")?;
    fixture::grant(&server.connect("old").await?).await?;
    let kept = frozen::load(&server, "old", RELEASED)?;
    for options in [&[][..], &["--inserts"]] {
        let dump = dump(&server, &server, "old", options)?;
        server.psql("postgres", "DROP DATABASE IF EXISTS new; CREATE DATABASE new TEMPLATE template0")?;
        // The dump grants functions with their former arguments, and some that are gone. The functions that have
        // other arguments now are granted again below.
        let before = server.log().lines().count();
        server.psql("new", &format!("\\set ON_ERROR_STOP off\n{dump}"))?;
        for error in server.log().lines().skip(before).filter(|line| line.contains("ERROR:")) {
            let is_gone = [
                "public.idem_",
                "idempotence.execute(",
                "idempotence.returns_rows(",
                "idempotence.first_column(",
                "idempotence.recorded(",
            ]
            .iter()
            .any(|name| error.contains(&format!("function {name}")));
            let is_grant = is_gone && error.ends_with("does not exist");
            ensure!(is_grant, "the restore says: {error}");
        }
        ensure!(version_in(&server, "new")? != RELEASED);
        fixture::grant(&server.connect("new").await?).await?;
        kept.check_works(&server, "new").await?;
    }
    Ok(())
}

// Goal: an update that is impossible changes nothing and names what is in its way. Without the obstacle, it
// succeeds.
// Method: a view and an SQL function that use functions whose arguments have changed.
async fn what_depends_on_a_function_that_is_made_anew_is_named(version: Version) -> Result<()> {
    let server = start(version)?;
    create_released(&server, "shop")?;
    server.psql(
        "shop",
        "CREATE VIEW fresh AS SELECT * FROM idem_once_many('mails', '{a}');
         CREATE FUNCTION found(key text) RETURNS text BEGIN ATOMIC SELECT status FROM idem_lookup('payments', key); END;
         CREATE FUNCTION by_text(key text) RETURNS idem_ticket LANGUAGE sql AS $$ SELECT idem_lookup('payments', key) $$",
    )?;
    let superuser = server.connect("shop").await?;
    let error = superuser.error("ALTER EXTENSION idempotence UPDATE").await?;
    ensure!(error.code().code() == "2BP01", "{}", error.message());
    ensure!(error.detail().is_some_and(|detail| detail.contains("view fresh")), "{:?}", error.detail());
    ensure!(version_in(&server, "shop")? == RELEASED);
    superuser.text("DROP VIEW fresh").await?;
    superuser.text("ALTER EXTENSION idempotence UPDATE").await?;
    superuser.text("SELECT idem_create_session('payments')").await?;
    ensure!(superuser.text("SELECT found('k')").await? == "unknown");
    ensure!(superuser.text("SELECT status FROM by_text('k')").await? == "unknown");
    Ok(())
}

// This is not a test. It freezes the installed version, for the tests of later versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it freezes the version that FREEZE names, at the release"]
async fn freeze() -> Result<()> {
    let version = std::env::var("FREEZE").context("FREEZE names the version")?;
    let cluster = Cluster::start(Version::Pg15)?;
    fixture::create_roles(&cluster)?;
    cluster.create_database("shop")?;
    let fixture = fixture::fill_at(&cluster, "shop", frozen::AGE).await?;
    frozen::freeze(&cluster, "shop", &fixture, &version)
}
