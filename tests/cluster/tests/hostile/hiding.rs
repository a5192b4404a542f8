//! What one role leaves behind hides nothing of another's from those who look, and holds nobody up.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};

const PRELOADED: (&str, &str) = ("shared_preload_libraries", "idempotence");

/// `bob` attacks. `alice` has a session, which is lent to `guest`.
const ROLES: &str = "
    CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE guest LOGIN; CREATE ROLE admin LOGIN;
    SELECT idem_grant('alice'), idem_grant('bob'), idem_grant('guest'), idem_grant('admin', 'admin');
    SELECT idem_create_session('orders', owner => 'alice', usable_by => 'guest'), idem_create_session('own', owner => 'bob')";

fn start(version: Version, settings: &[(&str, &str)]) -> Result<Cluster> {
    let server = shop::start_with(version, settings)?;
    server.psql(DATABASE, ROLES)?;
    Ok(server)
}

/// A row of health.
async fn row(admin: &Connection, name: &str) -> Result<String> {
    admin.text(&format!("SELECT level, detail FROM idempotence.health WHERE name = '{name}'")).await
}

// Goal: what has run out or is suspended of one role is told of, and named, beside any number of another's; in a moment.
// Method: 52 000 leases of bob's that ran out, and as many checkpoints; one each of alice's.
pub async fn a_crowd_of_leases_hides_nobodys(version: Version) -> Result<()> {
    let server = start(version, &[])?;
    let admin = server.connect_as(DATABASE, "admin").await?;
    let alice = server.connect_as(DATABASE, "alice").await?;
    alice.text("SELECT status FROM idem_begin('orders', 'charge', lease => '10 ms')").await?;
    alice
        .text("BEGIN; SELECT status FROM idem_begin('orders', 'ship'); SELECT idem_checkpoint('orders', 'ship', 'packed'); COMMIT")
        .await?;
    server.psql(
        DATABASE,
        "UPDATE idempotence.lease SET leased_until = now() - interval '6 min';
         UPDATE idempotence.checkpoint SET written_at = now() - interval '25 h';
         INSERT INTO idempotence.lease (digest, session, token, begun_at, leased_until, attempt, request, stream, holder, application)
           SELECT gen_random_uuid(), s.id, n, now(), now() - interval '7 min', 1, n::text, '', 'bob', ''
           FROM idempotence.session s, generate_series(1, 52000) n WHERE s.name = 'own';
         INSERT INTO idempotence.checkpoint (digest, session, written_at, request, point, stream)
           SELECT gen_random_uuid(), s.id, now() - interval '26 h', 'c' || n, 'p', ''
           FROM idempotence.session s, generate_series(1, 52000) n WHERE s.name = 'own';
         ANALYZE idempotence.lease, idempotence.checkpoint",
    )?;
    let run_out = row(&admin, "run out").await?;
    ensure!(run_out.starts_with("1|the lease of 52001 requests ran out more than five minutes ago"), "{run_out}");
    for told in
        ["; 1 of role alice, the first at ", "request \"charge\" of session \"orders\"; 52000 of role bob, the first"]
    {
        ensure!(run_out.contains(told), "{told:?} is not in {run_out}");
    }
    let suspended = row(&admin, "suspended").await?;
    ensure!(suspended.starts_with("1|52001 requests have been suspended"), "{suspended}");
    ensure!(suspended.contains("; 1 in sessions of role alice, the first since "), "{suspended}");
    ensure!(suspended.contains("request \"ship\" of session \"orders\"; 52000 in"), "{suspended}");
    let leases = row(&admin, "leases").await?;
    ensure!(leases.starts_with("1|0 requests are leased; most of 52001 leases are, or were, of role bob"), "{leases}");
    Ok(())
}

// Goal: a flood of errors of one role leaves those of others in the view.
// Method: three errors of alice's, then many of bob's of the same kind and of others. bob keeps the rest of the room.
pub async fn a_flood_of_errors_hides_nobodys(version: Version) -> Result<()> {
    let server = start(version, &[PRELOADED, ("idempotence.max_errors", "20")])?;
    let admin = server.connect_as(DATABASE, "admin").await?;
    let (alice, bob) = (server.connect_as(DATABASE, "alice").await?, server.connect_as(DATABASE, "bob").await?);
    for n in 0..3 {
        ensure!(alice.sqlstate(&format!("SELECT idem_record('orders', 'a{n}')")).await? == "ID007");
    }
    bob.text("SELECT FROM idem_settle('own', 'done')").await?;
    for n in 0..40 {
        ensure!(bob.sqlstate(&format!("SELECT idem_record('own', 'b{n}')")).await? == "ID007");
        ensure!(bob.sqlstate("SELECT idem_claim('own', 'done')").await? == "ID011");
    }
    let kept =
        "SELECT role, count(*), count(DISTINCT sqlstate) FROM idempotence.errors GROUP BY role ORDER BY role::text";
    let kept = admin.text(kept).await?;
    ensure!(kept == "alice|3|1\nbob|17|2", "{kept}");
    // Who had few so far gets a place of the one who has many.
    for n in 3..12 {
        ensure!(alice.sqlstate(&format!("SELECT idem_record('orders', 'a{n}')")).await? == "ID007");
    }
    let shared = "SELECT string_agg(n::text, ' ') FROM (SELECT count(*) n FROM idempotence.errors GROUP BY role) e";
    let shared = admin.text(shared).await?;
    ensure!(shared == "10 10", "{shared}");
    Ok(())
}

// Goal: names fool no reader of health, nor of who holds what: what shows as nothing, or turns the text, is spelt out.
// Method: a session, a role and an application with such characters, in rows of health and in the view segments.
pub async fn a_name_fools_no_reader(version: Version) -> Result<()> {
    let server = start(version, &[("idempotence.warn_holder", "1s")])?;
    let admin = server.connect_as(DATABASE, "admin").await?;
    let bob = server.connect_as(DATABASE, "bob").await?;
    let (turned, hidden) = ("\u{202e}", "\u{200b}\u{feff}\u{e0041}");
    bob.text(&format!("SET application_name = 'x'; SELECT idem_create_session('a{hidden}b{turned}c', ttl => '1 s')"))
        .await?;
    server.psql(DATABASE, &format!("CREATE ROLE \"al{hidden}ice{turned}\"; SELECT idem_grant('\"al{hidden}ice{turned}\"', 'user'); SELECT idem_create_session('gone{turned}', owner => '\"al{hidden}ice{turned}\"'); SET ROLE \"al{hidden}ice{turned}\"; SELECT idem_create_session('of it', ttl => '1 s'); RESET ROLE;"))?;
    let told = row(&admin, "standing sessions").await?;
    ensure!(told.contains("al\\u200B\\uFEFF\\U000E0041ice\\u202E"), "{told}");
    ensure!(told.contains("a\\u200B\\uFEFF\\U000E0041b\\u202Ec"), "{told}");
    server.psql(DATABASE, &format!("DROP OWNED BY \"al{hidden}ice{turned}\"; DROP ROLE \"al{hidden}ice{turned}\""))?;
    let whole = admin.text("SELECT string_agg(detail, ' ') FROM idempotence.health").await?;
    ensure!(whole.contains("gone\\u202E"), "{whole}");
    ensure!(!whole.contains([turned, hidden].map(|text| text.chars().next().unwrap_or_default())), "{whole}");
    Ok(())
}

// Goal: a sweep by hand deletes from a journal that its caller may not reach, and says nothing wrong of it.
// Method: a journal in a schema that only its owner may use; the admin sweeps.
pub async fn a_sweep_looks_with_the_rights_of_the_owner(version: Version) -> Result<()> {
    let server = start(version, &[])?;
    let admin = server.connect_as(DATABASE, "admin").await?;
    server.psql(DATABASE, "CREATE SCHEMA private AUTHORIZATION alice")?;
    let alice = server.connect_as(DATABASE, "alice").await?;
    alice
        .text(
            "SELECT idem_create_journal('private.j'); SELECT idem_create_session('j', journal => 'private.j');
             INSERT INTO private.j (tenant, session, request, expires_at) VALUES ('', 'j', '1', '-infinity')",
        )
        .await?;
    admin.text("CALL idem_sweep()").await?;
    let told = row(&admin, "journals").await?;
    ensure!(told == "0|journals of sessions, all of them there: 1", "{told}");
    ensure!(alice.text("SELECT count(*) FROM private.j").await? == "0");
    Ok(())
}

// Goal: journals that take all the time of a sweep keep it from nothing else, and are told of in a few words.
// Method: six journals on which the deletion sleeps, and two thousand whose tables are gone, of bob's; one of alice's that is
// gone. The worker sweeps the database, and so does a sweep by hand that is cancelled on a journal.
pub async fn a_crowd_of_journals_hides_no_sweep(version: Version) -> Result<()> {
    let server = start(version, &[PRELOADED, ("idempotence.naptime", "1s")])?;
    let admin = server.connect_as(DATABASE, "admin").await?;
    server.psql(
        DATABASE,
        "GRANT CREATE ON SCHEMA public TO bob, alice;
         CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN OLD; END $$;
         REVOKE EXECUTE ON FUNCTION sleep() FROM PUBLIC",
    )?;
    let make = "SELECT idem_create_journal('public.j' || n) FROM generate_series(1, 6) n;
                SELECT idem_create_session('slow ' || n, journal => 'public.j' || n) FROM generate_series(1, 6) n;
                DO $$ BEGIN FOR n IN 1..6 LOOP EXECUTE format('INSERT INTO public.j%s (tenant, session, request, expires_at)
                  VALUES ('''', %L, ''1'', ''-infinity'')', n, 'slow ' || n); END LOOP; END $$";
    server.connect_as(DATABASE, "bob").await?.text(make).await?;
    server.psql(
        DATABASE,
        "DO $$ BEGIN FOR n IN 1..6 LOOP EXECUTE format('CREATE TRIGGER sleep BEFORE DELETE ON j%s FOR EACH ROW EXECUTE FUNCTION sleep()', n); END LOOP; END $$;
         INSERT INTO idempotence.session (id, name, owner, created_at, require_payload, inbox, time_keys, journal)
           SELECT gen_random_uuid(), 'gone ' || n, 'bob', now(), false, false, false, 'public.gone' || n FROM generate_series(1, 2000) n;
         INSERT INTO idempotence.session (id, name, owner, created_at, require_payload, inbox, time_keys, journal)
           VALUES (gen_random_uuid(), 'lost', 'alice', now(), false, false, false, 'public.lost')",
    )?;
    for _ in 0..2 {
        let later = admin.text("SELECT clock_timestamp()").await?;
        server.wait_for(DATABASE, &format!("SELECT idempotence.last_sweep() > '{later}'"), "t").await?;
    }
    let told = row(&admin, "journals").await?;
    ensure!(told.len() < 3000 && told.starts_with("1|"), "{} characters: {told}", told.len());
    for part in ["journal public.lost of lost (role alice) is not there", "(role bob) is not there", "; 200"] {
        ensure!(told.contains(part), "{part:?} is not in {told}");
    }
    // Without the worker, whose last visit comes to its end first.
    server.conf("idempotence.databases", "postgres")?;
    server.reload()?;
    let visitors = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence worker' AND datname = '{DATABASE}'"
    );
    server.wait_for(DATABASE, &visitors, "0").await?;
    let now = admin.text("SELECT clock_timestamp()").await?;
    // The slow journals alone take three seconds, however fast the machine is.
    admin.text("SET statement_timeout = '2500ms'").await?;
    ensure!(admin.sqlstate("CALL idem_sweep()").await? == "57014", "the sweep by hand comes to no slow journal");
    let by_hand = format!("SELECT done_at > '{now}' FROM idempotence.sweep WHERE step = 'by hand'");
    ensure!(server.psql(DATABASE, &by_hand)?.trim_end() == "t", "the sweep by hand is not noted");
    Ok(())
}

// Goal: who idles in a transaction of his own keeps nobody's session from being exported; who was at work in that session is
// waited for, and an admin is told who.
// Method: bob holds a request of his session, then guest one of alice's session.
pub async fn an_idle_transaction_holds_up_no_export(version: Version) -> Result<()> {
    let server = start(version, &[PRELOADED, ("idempotence.wait", "300ms")])?;
    let alice = server.connect_as(DATABASE, "alice").await?;
    alice.execute("orders", "order-17", "1").await?;
    let (bob, guest) = (server.connect_as(DATABASE, "bob").await?, server.connect_as(DATABASE, "guest").await?);
    bob.text("BEGIN; SELECT FROM idem_begin('own', 'idle')").await?;
    guest.text("BEGIN; SELECT FROM idem_begin('orders', 'order-18')").await?;
    alice.text("SELECT idem_drop_session('orders')").await?;
    let export = "SELECT key, status FROM idem_export('orders', 'moves')";
    let admin = server.connect_as(DATABASE, "admin").await?;
    let refused = admin.error(export).await?;
    ensure!(refused.code().code() == "55006", "{refused}");
    let (told, pid) = (refused.detail().unwrap_or_default(), guest.pid().await?);
    ensure!(told.contains(&format!("process {pid} (")), "{told}");
    ensure!(!told.contains(&format!("process {} (", bob.pid().await?)), "{told}");
    ensure!(alice.sqlstate(export).await? == "55006");
    guest.text("ROLLBACK").await?;
    let exported = alice.text(export).await?;
    ensure!(exported == "order-17|succeeded", "{exported}");
    Ok(())
}
