//! The row about an outcome's life: the write-ahead log that an outcome costs from its recording to its
//! removal, while many outcomes are kept.

use anyhow::{Context, Result, bail};

use crate::finding::{Finding, Goal};
use crate::guarded::{CEILING, HAND_WRITTEN, IDEMPOTENCE, guarded};
use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::ring::segments::NOT_RESTORED;
use crate::row::{OFF_4, Row, Variant};
use crate::script::{KEY, Keygen, RANDOM_KEY};
use crate::spread::Spread;

/// The id of the row.
pub const LIFE: &str = "life";

/// The share of dead rows in a table at which autovacuum runs by default.
const DEAD_SHARE: f64 = 0.2;

/// The number of rows that one statement fills in.
const ROWS_PER_STATEMENT: usize = 50_000;

/// The number of requests between two checkpoints, as a multiple of the requests that the row about the
/// write-ahead log sends. In a complete run it corresponds to 1000 requests a second for five minutes.
const REQUESTS_FACTOR: u64 = 3;

pub fn row() -> Row {
    Row {
        id: LIFE,
        title: "Write-ahead log over an outcome's life",
        text: "How many bytes of log one outcome costs where many outcomes are kept: for its request, and for making room for \
another outcome. The requests are those of the sections before, all that are sent between two checkpoints. What the work alone \
writes is subtracted. Making room by hand is a `DELETE` of what has expired, the oldest fifth of the table, and a `VACUUM`, which \
autovacuum runs by then. With that many rows, the `VACUUM` comes many requests after the first row was deleted, so there is a \
checkpoint in between. The extension's sweep empties a segment, a third of all outcomes. \
`full_page_writes` is on.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Measures both kinds of keys.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for kind in [
        KeyKind { name: "UUIDv7 keys", key: KEY, keygen: Keygen::Ascending, goal: Some(Goal::AtMost(0.30)) },
        KeyKind { name: "random keys", key: RANDOM_KEY, keygen: Keygen::Random, goal: None },
    ] {
        kind.measure(lab, plan, &mut findings)?;
    }
    Ok(findings)
}

/// A kind of keys.
struct KeyKind {
    name: &'static str,
    key: &'static str,
    keygen: Keygen,
    goal: Option<Goal>,
}

impl KeyKind {
    fn measure(&self, lab: &Lab, plan: &Plan, findings: &mut Vec<Finding>) -> Result<()> {
        eprintln!("{LIFE}: filling tables with {} outcomes, {}", plan.many, self.name);
        lab.fresh_copy()?;
        self.fill(lab, plan.many)?;
        let requests = REQUESTS_FACTOR * plan.wal_transactions;
        let variants = guarded(self.key, self.keygen);
        let bytes_of = |variant: usize| self.request_bytes(lab, &variants[variant], requests);
        let (work, by_hand, ours) = (bytes_of(CEILING)?, bytes_of(HAND_WRITTEN)?, bytes_of(IDEMPOTENCE)?);
        let (room_by_hand, room) = (self.delete_bytes(lab)?, self.empty_bytes(lab)?);

        let mut tell = |what: &str, bytes: f64| {
            let what = format!("{}, {} kept: {what}, bytes", self.name, plan.many);
            eprintln!("{LIFE}: {what}: {bytes:.1}");
            findings.push(Finding::new(what, Spread::of([bytes]), 1));
        };
        tell("request, hand-written", by_hand - work);
        tell("making room, hand-written", room_by_hand);
        tell("request, idempotence", ours - work);
        tell("making room, idempotence", room);
        let ratio = Spread::of([(ours - work + room) / (by_hand - work + room_by_hand)]);
        let what = format!("{}, {} kept: bytes, idempotence / hand-written", self.name, plan.many);
        findings.push(Finding { goal: self.goal, ..Finding::new(what, ratio, 2) });
        Ok(())
    }

    /// Fills the hand-written table and the segments with this number of rows each, the oldest first. Their
    /// times of expiry are spread over seven days.
    fn fill(&self, lab: &Lab, many: u64) -> Result<()> {
        // The digest of a key like UUIDv7 begins with the time of the key, see `src/domain/identity.rs`.
        let (key, digest) = match self.keygen {
            Keygen::Ascending => ("kept_key(n)", "left(replace(k, '-', ''), 12) || right(md5(k), 20)"),
            _ => ("kept_random_key(n)", "md5(k)"),
        };
        let expires_at = format!("now() + (n::float8 / {many} - {DEAD_SHARE}) * interval '7 days'");
        let response = "'{\"status\": \"booked\", \"transfer\": 4711}'::jsonb";
        lab.psql(DATABASE, "TRUNCATE request, idempotence.outcome_0")?;
        for from in (1..=many).step_by(ROWS_PER_STATEMENT) {
            let to = many.min(from + ROWS_PER_STATEMENT as u64 - 1);
            // The oldest third is in the segment after the current segment, and has expired when that segment
            // is emptied.
            let segment = (from * 3 / (many + 1) + 1) % 3;
            let ends_at = if segment == 1 { "now() - interval '1 hour'" } else { &expires_at };
            lab.psql(
                DATABASE,
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
        lab.psql(DATABASE, &format!("{NOT_RESTORED}; VACUUM ANALYZE"))?;
        Ok(())
    }

    /// Bytes per request, beginning at a checkpoint.
    fn request_bytes(&self, lab: &Lab, variant: &Variant, requests: u64) -> Result<f64> {
        eprintln!("{LIFE}: {requests} requests, {}, {}", variant.name, self.name);
        let bytes = lab.wal_bytes(|| lab.run_transactions(variant, OFF_4, requests))?;
        Ok(bytes / requests as f64)
    }

    /// Bytes per row that is deleted by hand.
    fn delete_bytes(&self, lab: &Lab) -> Result<f64> {
        eprintln!("{LIFE}: making room by hand, {}", self.name);
        let mut rows = 0.0;
        let delete = lab.wal_bytes(|| {
            let deleted = "WITH deleted AS (DELETE FROM request WHERE expires_at < now() RETURNING 1) SELECT count(*) FROM deleted";
            rows = lab.psql(DATABASE, deleted)?.parse()?;
            Ok(())
        })?;
        let vacuum = lab.wal_bytes(|| lab.psql(DATABASE, "VACUUM request").map(drop))?;
        if rows < 1.0 {
            bail!("nothing was deleted");
        }
        Ok((delete + vacuum) / rows)
    }

    /// Bytes per row of a segment that is emptied.
    fn empty_bytes(&self, lab: &Lab) -> Result<f64> {
        let rows: f64 = lab
            .psql(DATABASE, "SELECT count(*) FROM idempotence.outcome_1")?
            .parse()
            .context("the outcomes of a segment")?;
        lab.psql(
            DATABASE,
            "UPDATE idempotence.segment SET ends_at = now() - interval '1 hour', looked_to = NULL WHERE number = 1",
        )?;
        let bytes = lab.wal_bytes(|| lab.psql(DATABASE, "CALL idem_sweep()").map(drop))?;
        if lab.psql(DATABASE, "SELECT pg_relation_size('idempotence.outcome_1')")? != "0" {
            bail!("the segment is not empty");
        }
        Ok(bytes / rows)
    }
}
