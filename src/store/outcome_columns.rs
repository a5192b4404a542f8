//! The columns of the tables of outcomes.

use crate::store::tuple::columns;

columns! { "outcome_0", Columns, COLUMNS: DIGEST, SESSION, RECORDED_AT, EXPIRES_AT, CLASS, KEY, RECORDED_BY, RESPONSE, FINGERPRINT, TOKEN }
