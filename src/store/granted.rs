//! `idempotence.granted`: which levels were granted to which roles. The check `rights` of the view `health` compares it with
//! the rights that they have.

use crate::error::Error;
use crate::store::sql;
use crate::store::write;

/// Notes that a role was granted a level.
pub fn note(role: &str, level: &str) -> Result<(), Error> {
    let statement = "INSERT INTO idempotence.granted (role, level) SELECT $1, $2
        WHERE NOT EXISTS (SELECT FROM idempotence.granted g
                          WHERE g.role OPERATOR(pg_catalog.=) $1 AND g.level OPERATOR(pg_catalog.=) $2)";
    write::as_ours(|| sql::execute(statement, &[role.into(), level.into()])).map(drop)
}

/// Notes that all levels of a role were taken away.
pub fn forget(role: &str) -> Result<(), Error> {
    sql::execute("DELETE FROM idempotence.granted WHERE role OPERATOR(pg_catalog.=) $1", &[role.into()]).map(drop)
}
