//! The columns of the tables of outcomes.

use crate::store::tuple::{Tuple, columns};

columns! { "outcome_0", COLUMNS: DIGEST, SESSION, RECORDED_AT, EXPIRES_AT, RECORDED_BY, CLASS, KEY, FINGERPRINT, TOKEN, RESPONSE }
pub(super) type Columns<'a> = Tuple<'a, COLUMNS>;
