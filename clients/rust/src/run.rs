//! Executes a request in one transaction, and returns its answer after COMMIT.

use crate::conn::{Conn, Loan};
use crate::database::{Ask, Database};
use crate::request::{Answer, Begun, Request};
use crate::retry::Retry;
use crate::transaction::Tx;
use crate::{BoxError, Error, Final};
use futures_util::future::join;
use serde::Serialize;
use std::time::Duration;

const ONCE: &str = "SELECT ord::text FROM idem_once_many($1::text, ARRAY(SELECT key FROM jsonb_array_elements_text(
    $2::text::jsonb) WITH ORDINALITY k(key, place) ORDER BY place)) ORDER BY ord";

impl Request {
    /// Executes it once: calls the work in the transaction that records what the work returns, and returns after
    /// COMMIT. An error of the work rolls everything back, except [`Final`], whose response is recorded as a failure.
    /// The work is called again if its connection is lost, or if the server reports an error to this transaction that a
    /// new attempt may solve. No other error calls it again.
    pub async fn run<D, F, W, R, E>(&self, database: &D, mut work: F) -> Result<Answer, Error>
    where
        D: Database,
        F: FnMut(Conn<D>) -> W,
        W: Future<Output = Result<R, E>>,
        R: Serialize,
        E: Into<BoxError>,
    {
        let mut retry = Retry::new(self.deadline, self.deadline);
        let mut claim = self.claim;
        loop {
            let error = match self.attempt(database, &mut work, retry.left(), claim).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // Begin explains why a claim was refused.
            if claim && ["ID011", "55P03", "55000"].iter().any(|state| error.has(state)) {
                claim = false;
            } else {
                retry.after(error).await?;
            }
        }
    }

    async fn attempt<D, F, W, R, E>(
        &self,
        database: &D,
        work: &mut F,
        left: Duration,
        claim: bool,
    ) -> Result<Answer, Error>
    where
        D: Database,
        F: FnMut(Conn<D>) -> W,
        W: Future<Output = Result<R, E>>,
        R: Serialize,
        E: Into<BoxError>,
    {
        let tx = if claim {
            Tx::open(database, left).await?
        } else {
            match self.begin(database, left).await? {
                Begun::Started(tx) => tx,
                Begun::Answered(answer) => return Ok(answer),
            }
        };
        let loan = Loan::new(tx);
        let answered = self.execute(&loan, work, claim).await;
        if answered.is_err() {
            loan.rollback().await;
        }
        answered
    }

    /// Lends the transaction to the work, and commits it. After an error it is still to be rolled back.
    async fn execute<D, F, W, R, E>(&self, loan: &Loan<D>, work: &mut F, claim: bool) -> Result<Answer, Error>
    where
        D: Database,
        F: FnMut(Conn<D>) -> W,
        W: Future<Output = Result<R, E>>,
        R: Serialize,
        E: Into<BoxError>,
    {
        let mut conn = loan.lend().ok_or_else(|| Error::Other("the transaction is lent already".into()))?;
        let worked = if claim {
            let sent = conn.tx().send(self.claim_statement()?).await?;
            let (claimed, worked) = join(sent, work(conn)).await;
            // The other errors are consequences of its refusal.
            claimed?;
            worked
        } else {
            work(conn).await
        };
        let answer = match worked.map_err(Into::into) {
            Ok(response) => {
                Answer::new(false, serde_json::to_value(response).map_err(|error| Error::Other(error.into()))?)
            }
            Err(error) => match error.downcast::<Final>() {
                Ok(last) => Answer::new(true, last.0),
                Err(error) => return Err(loan.attribute(error).await),
            },
        };
        let record = self.record_statement(&answer)?;
        let Some(mut tx) = loan.take()? else { unreachable!("the transaction was begun") };
        match tx.record(record, answer.failed(), false).await {
            Ok(()) => Ok(answer),
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }
}

/// Executes a request once: [`Request::run`] with the default options.
pub async fn run<D, F, W, R, E>(
    database: &D,
    session: &str,
    key: impl ToString,
    payload: &(impl Serialize + ?Sized),
    work: F,
) -> Result<Answer, Error>
where
    D: Database,
    F: FnMut(Conn<D>) -> W,
    W: Future<Output = Result<R, E>>,
    R: Serialize,
    E: Into<BoxError>,
{
    Request::new(session, key).payload(payload).run(database, work).await
}

/// The positions of those keys that an inbox sees for the first time, within the caller's transaction: do the work for
/// them, commit, and then acknowledge the messages.
pub async fn once<K: ToString>(conn: &mut impl Ask, session: &str, keys: &[K]) -> Result<Vec<usize>, Error> {
    let keys = keys.iter().map(K::to_string).collect::<serde_json::Value>().to_string();
    let rows = conn.ask(ONCE, &[Some(session), Some(&keys)]).await?;
    let position = |row: &Vec<Option<String>>| row.first()?.as_deref()?.parse::<usize>().ok();
    Ok(rows.iter().filter_map(position).map(|position| position - 1).collect())
}
