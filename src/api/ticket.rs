//! `idem_ticket`: the answer of the functions on requests.

use crate::pg::{self, CompositeRow};
use crate::requests::answer::Ticket;
use pgrx::pg_sys::Datum;

impl CompositeRow for Ticket {
    const SQL_TYPE: &'static str = "idem_ticket";
    type Columns = [Option<Datum>; 9];

    fn columns(self) -> Self::Columns {
        let outcome = self.outcome.as_ref();
        let checkpoint = self.checkpoint.as_ref();
        [
            Some(pg::text(self.status)),
            Some(self.replayed.into()),
            outcome.and_then(|outcome| outcome.response).map(pg::Jsonb::datum),
            self.token.map(Into::into),
            self.attempt.map(Into::into),
            checkpoint.map(|checkpoint| pg::text(&checkpoint.point)),
            checkpoint.and_then(|checkpoint| checkpoint.state).map(pg::Jsonb::datum),
            outcome.map(|outcome| outcome.recorded_at.into()),
            outcome.and_then(|outcome| outcome.expires_at).or(self.leased_until).map(Into::into),
        ]
    }
}
