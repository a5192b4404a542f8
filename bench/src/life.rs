//! What an outcome costs in log from its making to its end, where many are kept.

use anyhow::{Context, Result, bail};

use crate::Plan;
use crate::found::{Found, Goal};
use crate::lab::{COPY, Lab};
use crate::rows::{self, CEILING, HAND, KEY, Keygen, OFF_4, OURS, RANDOM_KEY, Row, Variant};
use crate::stats::Spread;

/// The row's id.
pub const LIFE: &str = "life";

/// The share of a table that is dead when autovacuum comes, by default.
const DEAD: f64 = 0.2;

/// So many rows are filled in by one statement.
const AT_ONCE: usize = 50_000;

/// The requests between two checkpoints, as multiples of those that the row about the log sends: with the
/// whole plan, 1000 a second for five minutes.
const REQUESTS: u64 = 3;

pub fn row() -> Row {
    Row {
        id: LIFE,
        title: "Write-ahead log over an outcome's life",
        text: "Where many outcomes are kept, bytes of log for each: of the request, and of making room for another one. The requests \
are those of the rows before, all that are sent between two checkpoints; what the work alone writes is taken off. Making room by hand is \
a `DELETE` of what has expired, the oldest fifth of the table, and a `VACUUM`, as autovacuum does it by then; with that many rows it comes \
many requests after the first of them was deleted, so there is a checkpoint between. The extension's sweep empties a segment, a third of all. \
`full_page_writes` is on.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Under both kinds of keys.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for kind in [
        Kind { name: "UUIDv7 keys", key: KEY, keygen: Keygen::Ascending, goal: Some(Goal::AtMost(0.25)) },
        Kind { name: "random keys", key: RANDOM_KEY, keygen: Keygen::Random, goal: None },
    ] {
        kind.measure(lab, plan, &mut found)?;
    }
    Ok(found)
}

struct Kind {
    name: &'static str,
    key: &'static str,
    keygen: Keygen,
    goal: Option<Goal>,
}

impl Kind {
    fn measure(&self, lab: &Lab, plan: &Plan, found: &mut Vec<Found>) -> Result<()> {
        eprintln!("{LIFE}: filling tables with {} outcomes, {}", plan.many, self.name);
        lab.fresh_copy()?;
        self.fill(lab, plan.many)?;
        let requests = REQUESTS * plan.wal_transactions;
        let variants = rows::guarded(self.key, self.keygen);
        let bytes_of = |place: usize| self.requests(lab, &variants[place], requests);
        let (work, hand, ours) = (bytes_of(CEILING)?, bytes_of(HAND)?, bytes_of(OURS)?);
        let (room_by_hand, room) = (self.delete(lab)?, self.empty(lab)?);

        let mut tell = |what: &str, bytes: f64| {
            let what = format!("{}, {} kept: {what}, bytes", self.name, plan.many);
            eprintln!("{LIFE}: {what}: {bytes:.1}");
            found.push(Found::new(what, Spread::of([bytes]), 1));
        };
        tell("request, hand-written", hand - work);
        tell("making room, hand-written", room_by_hand);
        tell("request, idempotence", ours - work);
        tell("making room, idempotence", room);
        let ratio = Spread::of([(ours - work + room) / (hand - work + room_by_hand)]);
        let what = format!("{}, {} kept: bytes, idempotence / hand-written", self.name, plan.many);
        found.push(Found { goal: self.goal, ..Found::new(what, ratio, 2) });
        Ok(())
    }

    /// Puts as many into the table by hand and into the segments, the oldest first, recorded over seven days.
    fn fill(&self, lab: &Lab, many: u64) -> Result<()> {
        // Where the digest begins with the key's time, see `src/domain/identity.rs`.
        let (key, digest) = match self.keygen {
            Keygen::Ascending => ("kept_key(n)", "left(replace(k, '-', ''), 12) || right(md5(k), 20)"),
            _ => ("kept_random_key(n)", "md5(k)"),
        };
        let expires_at = format!("now() + (n::float8 / {many} - {DEAD}) * interval '7 days'");
        let response = "'{\"status\": \"booked\", \"transfer\": 4711}'::jsonb";
        lab.psql(COPY, "TRUNCATE request, idempotence.outcome_0")?;
        for from in (1..=many).step_by(AT_ONCE) {
            let to = many.min(from + AT_ONCE as u64 - 1);
            // The oldest third is in the segment after the current one, and has expired when that is emptied.
            let segment = (from * 3 / (many + 1) + 1) % 3;
            let ends_at = if segment == 1 { "now() - interval '1 hour'" } else { &expires_at };
            lab.psql(
                COPY,
                &format!(
                    "INSERT INTO request (scope, key, fingerprint, response, expires_at)
                     SELECT 'payments', {key}, sha256(n::text::bytea), {response}, {expires_at} FROM generate_series({from}, {to}) n;
                     INSERT INTO idempotence.outcome_{segment} (digest, session, recorded_at, expires_at, recorded_by, class, key, fingerprint, response)
                     SELECT ({digest})::uuid, s.id, now(), {ends_at}, 10, 's', k, md5(k)::uuid, {response}
                       FROM generate_series({from}, {to}) n CROSS JOIN LATERAL (SELECT {key}) t (k), idempotence.session s
                      WHERE s.name = 'payments'"
                ),
            )?;
        }
        lab.psql(COPY, "CALL idem_sweep(); VACUUM ANALYZE")?;
        Ok(())
    }

    /// Bytes a request, beginning with a checkpoint.
    fn requests(&self, lab: &Lab, variant: &Variant, requests: u64) -> Result<f64> {
        eprintln!("{LIFE}: {requests} requests, {}, {}", variant.name, self.name);
        let bytes = lab.bytes_of_log(|| lab.run_transactions(variant, OFF_4, requests))?;
        Ok(bytes / requests as f64)
    }

    /// Bytes a row that makes room by hand.
    fn delete(&self, lab: &Lab) -> Result<f64> {
        eprintln!("{LIFE}: making room by hand, {}", self.name);
        let mut rows = 0.0;
        let delete = lab.bytes_of_log(|| {
            let deleted = "WITH deleted AS (DELETE FROM request WHERE expires_at < now() RETURNING 1) SELECT count(*) FROM deleted";
            rows = lab.psql(COPY, deleted)?.parse()?;
            Ok(())
        })?;
        let vacuum = lab.bytes_of_log(|| lab.psql(COPY, "VACUUM request").map(drop))?;
        if rows < 1.0 {
            bail!("nothing was deleted");
        }
        Ok((delete + vacuum) / rows)
    }

    /// Bytes a row of an emptied segment.
    fn empty(&self, lab: &Lab) -> Result<f64> {
        let rows: f64 = lab
            .psql(COPY, "SELECT count(*) FROM idempotence.outcome_1")?
            .parse()
            .context("the outcomes of a segment")?;
        lab.psql(COPY, "UPDATE idempotence.segment SET closed_at = now() - interval '60 days' WHERE number = 1")?;
        let bytes = lab.bytes_of_log(|| lab.psql(COPY, "CALL idem_sweep()").map(drop))?;
        if lab.psql(COPY, "SELECT pg_relation_size('idempotence.outcome_1')")? != "0" {
            bail!("the segment is not empty");
        }
        Ok(bytes / rows)
    }
}
