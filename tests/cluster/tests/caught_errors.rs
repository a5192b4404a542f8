//! A call that catches errors of PostgreSQL again and again, and then raises one. The golden test `caught_errors` has
//! the errors of commands. Here are the errors by which a call bounds its own waits, and those of a user's trigger.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Version, on_all_versions};

on_all_versions!(
    a_thousand_waits_that_ran_out_leave_the_next_error_unchanged,
    a_thousand_errors_of_a_trigger_pass_unchanged,
);

/// Waits for a request that another transaction holds, a thousand times, and then raises an error.
const SCHEMA: &str = "
    CREATE FUNCTION wait_and_refuse(state text) RETURNS integer LANGUAGE plpgsql AS $$
    DECLARE
      answer text;
    BEGIN
      FOR i IN 1 .. 1000 LOOP
        answer := CASE i % 3
          WHEN 0 THEN (idem_begin('payments', 'held', wait => '1 ms')).status
          WHEN 1 THEN (idem_lookup('payments', 'held', wait => '1 ms')).status
          ELSE (idem_settle('payments', 'held', wait => '1 ms')).status
        END;
        ASSERT answer = 'in_progress', answer;
      END LOOP;
      RAISE EXCEPTION 'refused with %', state USING ERRCODE = state, DETAIL = 'a detail', HINT = 'a hint';
    END $$";

// Goal: errors that a call has caught leave PostgreSQL's error stack, which has five entries. So the server goes on,
// and the error that the call raises at last has its own fields.
// Method: a function waits in vain a thousand times, and raises an error with an SQLSTATE of the user's. The call is
// made by itself, and by idem_run, which raises the error or records it.
async fn a_thousand_waits_that_ran_out_leave_the_next_error_unchanged(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, SCHEMA)?;
    let holder = server.connect(DATABASE).await?;
    holder.text("SELECT idem_create_session('payments')").await?;
    holder.text("BEGIN; SELECT FROM idem_begin('payments', 'held')").await?;
    let caller = server.connect(DATABASE).await?;
    let calls = [
        "SELECT wait_and_refuse('AB123')",
        "SELECT idem_run('payments', 'raises', 'SELECT wait_and_refuse(''AB123'')')",
        "SELECT idem_run('payments', 'retried', 'SELECT wait_and_refuse(''40P01'')', on_error => 'record')",
    ];
    for call in calls {
        let error = caller.try_text(call).await.err().with_context(|| format!("{call} has raised no error"))?;
        let error = error.as_db_error().with_context(|| format!("{call}: {error}"))?;
        let state = if call.contains("AB123") { "AB123" } else { "40P01" };
        let fields = (error.code().code(), error.message(), error.detail(), error.hint());
        let raised = (state, &*format!("refused with {state}"), Some("a detail"), Some("a hint"));
        ensure!(fields == raised, "{call}: {fields:?}");
    }
    let recorded = "SELECT concat_ws('|', status, replayed, response->>'sqlstate', response->>'message',
            response->>'detail', response->>'hint')
        FROM idem_run('payments', 'records', 'SELECT wait_and_refuse(''AB124'')', on_error => 'record')";
    for replayed in ["f", "t"] {
        let found = caller.text(recorded).await?;
        ensure!(found == format!("failed|{replayed}|AB124|refused with AB124|a detail|a hint"), "{found}");
    }
    holder.text("SELECT idem_record('payments', 'held'); COMMIT").await?;
    ensure!(caller.replay("payments", "held").await? == "succeeded|");
    Ok(())
}

/// A trigger on the extension's own table, and a function that catches its error a thousand times and then once lets it
/// pass.
const TRIGGER: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'refused %', NEW.key USING ERRCODE = 'TR123', DETAIL = 'a detail', HINT = 'a hint';
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON idempotence.outcome_0 FOR EACH ROW EXECUTE FUNCTION refuse();
    CREATE FUNCTION record_in_vain() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
      FOR i IN 1 .. 1000 LOOP
        BEGIN
          PERFORM idem_begin('payments', i::text), idem_record('payments', i::text);
          RAISE 'recorded';
        EXCEPTION WHEN SQLSTATE 'TR123' THEN
          ASSERT SQLERRM = 'refused ' || i, SQLERRM;
        END;
      END LOOP;
      PERFORM idem_begin('payments', 'last'), idem_record('payments', 'last');
    END $$";

// Goal: an error that a user's trigger raises while the extension writes to its own table passes through the library as
// it is.
// Method: a trigger refuses each outcome. Its errors are caught a thousand times in one call, and then one reaches the
// client.
async fn a_thousand_errors_of_a_trigger_pass_unchanged(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, TRIGGER)?;
    let caller = server.connect(DATABASE).await?;
    caller.text("SELECT idem_create_session('payments')").await?;
    let error = caller.error("SELECT record_in_vain()").await?;
    let fields = (error.code().code(), error.message(), error.detail(), error.hint());
    ensure!(fields == ("TR123", "refused last", Some("a detail"), Some("a hint")), "{fields:?}");
    ensure!(error.where_().is_some_and(|context| context.contains("refuse() line")), "{error:?}");
    caller.text("DROP TRIGGER refuse ON idempotence.outcome_0").await?;
    caller.execute("payments", "last", "1").await?;
    ensure!(caller.replay("payments", "last").await? == "succeeded|1");
    Ok(())
}
