//! The SQL functions on standing sessions: create, alter and drop; and the name of the server, which they can be bound to.

use super::null::required;
use crate::error::{legible, or_raise};
use crate::guc;
use crate::journal::create;
use crate::pg::{Regrole, Regtype};
use crate::sessions::standing::{self, Asked};
use pgrx::datum::Interval;
use pgrx::{PgSqlErrorCode, default, ereport, pg_extern};

#[pg_extern(volatile, parallel_unsafe)]
fn idem_create_session(
    session: Option<&str>,
    ttl: default!(Option<Interval>, "NULL"),
    require_payload: default!(Option<bool>, "false"),
    inbox: default!(Option<bool>, "false"),
    time_keys: default!(Option<bool>, "false"),
    owner: default!(Option<Regrole>, "NULL"),
    usable_by: default!(Option<Regrole>, "NULL"),
    max_attempts: default!(Option<i32>, "NULL"),
    node: default!(Option<&str>, "NULL"),
    journal: default!(Option<&str>, "NULL"),
) {
    let (session, created) = or_raise((|| {
        let session = required("session", session)?;
        let require_payload = Some(required("require_payload", require_payload)?);
        let (owner, usable_by) = (owner.map(|role| role.0), usable_by.map(|role| role.0));
        let asked = Asked { ttl, require_payload, owner, usable_by, max_attempts, node };
        let (inbox, time_keys) = (required("inbox", inbox)?, required("time_keys", time_keys)?);
        Ok((session, standing::create(session, inbox, time_keys, journal, &asked)?))
    })());
    if !created {
        let message = format!("session \"{session}\" already exists with the same options, skipping");
        ereport!(NOTICE, PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT, legible(&message));
    }
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_alter_session(
    session: Option<&str>,
    ttl: default!(Option<Interval>, "NULL"),
    require_payload: default!(Option<bool>, "NULL"),
    owner: default!(Option<Regrole>, "NULL"),
    usable_by: default!(Option<Regrole>, "NULL"),
    max_attempts: default!(Option<i32>, "NULL"),
    node: default!(Option<&str>, "NULL"),
) {
    let (owner, usable_by) = (owner.map(|role| role.0), usable_by.map(|role| role.0));
    let asked = Asked { ttl, require_payload, owner, usable_by, max_attempts, node };
    or_raise(required("session", session).and_then(|session| standing::alter(session, &asked)));
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_create_journal(
    journal: Option<&str>,
    tenant: default!(Option<&str>, "'tenant'"),
    tenant_type: default!(Option<Regtype>, "'text'"),
) {
    let (journal, created) = or_raise((|| {
        let journal = required("journal", journal)?;
        let tenant_type = required("tenant_type", tenant_type)?.0;
        Ok((journal, create::create(journal, required("tenant", tenant)?, tenant_type)?))
    })());
    if !created {
        let message = format!("table \"{journal}\" is a journal already, skipping");
        ereport!(NOTICE, PgSqlErrorCode::ERRCODE_DUPLICATE_TABLE, legible(&message));
    }
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_drop_session(session: Option<&str>) {
    or_raise(required("session", session).and_then(standing::drop));
}

#[pg_extern(stable, parallel_safe)]
fn idem_node() -> String {
    guc::node()
}
