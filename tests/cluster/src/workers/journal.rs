//! What the workers were told of each request, and whether that goes together with what was recorded.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};

/// The journal of all workers.
#[derive(Default)]
pub struct Journal(HashMap<usize, Told>);

/// What the workers were told of one request.
#[derive(Debug, Default)]
struct Told {
    /// The claims, by their tokens.
    claims: BTreeMap<i64, Claim>,
    /// The begins that no answer came to. Each may have taken over.
    unanswered: usize,
    /// The token of the record that was acknowledged. The inner value is `None` for a record without a lease.
    recorded: Option<Option<i64>>,
}

/// A claim that a begin handed out.
#[derive(Debug)]
struct Claim {
    worker: usize,
    attempt: i32,
    /// The commit of the begin was answered.
    committed: bool,
    /// The worker has tried to release it.
    released: bool,
    /// It was refused as superseded.
    fenced: bool,
}

/// What is in the tables.
#[derive(Debug)]
pub struct Standing {
    /// The token of the record; `None`: it was recorded without a lease.
    pub token: Option<i64>,
    /// The worker that recorded.
    pub worker: usize,
    /// Whether claims outlive a crash.
    pub keeps: bool,
}

impl Journal {
    fn of(&mut self, request: usize) -> &mut Told {
        self.0.entry(request).or_default()
    }

    /// A begin is sent.
    pub fn ask(&mut self, request: usize) {
        self.of(request).unanswered += 1;
    }

    /// The begin was answered, and gave no claim.
    pub fn answer(&mut self, request: usize) {
        self.of(request).unanswered -= 1;
    }

    /// The begin was answered with a token. Its commit has not been answered yet.
    pub fn hand_out(&mut self, request: usize, token: i64, worker: usize, attempt: i32) -> Result<()> {
        self.answer(request);
        let claim = Claim { worker, attempt, committed: false, released: false, fenced: false };
        let former = self.of(request).claims.insert(token, claim);
        ensure!(former.is_none(), "token {token} of request {request} was handed out twice: {former:?}");
        Ok(())
    }

    /// The begin with this token was committed.
    pub fn commit(&mut self, request: usize, token: i64) -> Result<()> {
        self.of(request).claims.get_mut(&token).context("a token that was handed out")?.committed = true;
        Ok(())
    }

    /// The holder of a token is about to release it.
    pub fn try_release(&mut self, request: usize, token: i64) {
        if let Some(claim) = self.of(request).claims.get_mut(&token) {
            claim.released = true;
        }
    }

    /// A token was refused.
    pub fn fence(&mut self, request: usize, token: i64) {
        if let Some(claim) = self.of(request).claims.get_mut(&token) {
            claim.fenced = true;
        }
    }

    /// A record was committed.
    pub fn record(&mut self, request: usize, token: Option<i64>) -> Result<()> {
        let former = self.of(request).recorded.replace(token);
        ensure!(former.is_none(), "request {request} was recorded by {former:?}, and again by {token:?}");
        Ok(())
    }

    /// Whether a worker was told by now that it has taken over from the holder of this token.
    pub fn is_superseded(&self, request: usize, token: i64) -> bool {
        let told = self.0.get(&request);
        told.is_some_and(|told| told.claims.range(token + 1..).any(|(_, claim)| claim.committed))
    }

    /// Compares what the workers were told of a request with what is in the tables.
    pub fn judge(&self, request: usize, found: &Standing) -> Result<()> {
        let told = self.0.get(&request).context("nobody was told of a request that is done")?;
        told.judge(found).with_context(|| format!("request {request}: {found:?}, {told:?}"))
    }
}

impl Told {
    fn judge(&self, found: &Standing) -> Result<()> {
        if let Some(token) = self.recorded {
            ensure!(found.token == token, "another record was acknowledged");
        }
        if let Some(token) = found.token {
            let claim = self.claims.get(&token).context("nobody was handed the token of the record")?;
            ensure!(claim.worker == found.worker, "the token was another worker's");
            // No begin gets a claim after the record. So a claim that was committed came before it.
            let later = self.claims.range(token + 1..).find(|(_, claim)| claim.committed);
            ensure!(later.is_none(), "the token of the record was superseded by {later:?}");
        }
        // After a release the attempts count from one again.
        let mut former = None;
        for (token, claim) in &self.claims {
            if claim.committed && found.keeps {
                ensure!(former < Some(claim.attempt), "token {token} is higher, and its attempt is not");
                former = Some(claim.attempt);
            }
            former = former.filter(|_| !claim.released);
        }
        for (token, claim) in self.claims.iter().filter(|(_, claim)| claim.fenced && claim.committed && found.keeps) {
            let is_explained = claim.released
                || found.token == Some(*token)
                || found.token.is_none()
                || self.unanswered > 0
                || self.claims.range(token + 1..).next().is_some();
            ensure!(is_explained, "token {token} was refused, though nobody has superseded it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Journal, Standing};

    const RECORDED_BY_TWO: Standing = Standing { token: Some(2), worker: 1, keeps: true };

    /// A request that worker 0 had and worker 1 took over.
    fn taken_over() -> anyhow::Result<Journal> {
        let mut journal = Journal::default();
        for (token, worker) in [(1, 0), (2, 1)] {
            journal.ask(7);
            journal.hand_out(7, token, worker, worker as i32 + 1)?;
            journal.commit(7, token)?;
        }
        Ok(journal)
    }

    #[test]
    fn the_newest_claim_records() -> anyhow::Result<()> {
        let journal = taken_over()?;
        assert!(journal.is_superseded(7, 1) && !journal.is_superseded(7, 2));
        journal.judge(7, &RECORDED_BY_TWO)?;
        assert!(journal.judge(7, &Standing { token: Some(1), worker: 0, keeps: true }).is_err());
        assert!(journal.judge(7, &Standing { token: Some(3), worker: 1, keeps: true }).is_err());
        Ok(())
    }

    #[test]
    fn no_token_comes_twice_and_attempts_rise() -> anyhow::Result<()> {
        let mut journal = taken_over()?;
        journal.ask(7);
        assert!(journal.hand_out(7, 2, 0, 3).is_err());
        journal.ask(7);
        journal.hand_out(7, 3, 0, 1)?;
        journal.commit(7, 3)?;
        let found = Standing { token: Some(3), worker: 0, keeps: true };
        assert!(journal.judge(7, &found).is_err());
        journal.judge(7, &Standing { keeps: false, ..found })?;
        journal.try_release(7, 2);
        journal.judge(7, &found)
    }

    #[test]
    fn a_refusal_has_a_reason() -> anyhow::Result<()> {
        let mut journal = taken_over()?;
        journal.fence(7, 1);
        journal.judge(7, &RECORDED_BY_TWO)?;
        journal.ask(8);
        journal.hand_out(8, 5, 0, 1)?;
        journal.commit(8, 5)?;
        journal.ask(8);
        journal.answer(8);
        journal.fence(8, 5);
        assert!(journal.judge(8, &Standing { token: Some(6), worker: 0, keeps: true }).is_err());
        Ok(())
    }
}
