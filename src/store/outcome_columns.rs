//! The columns of the tables of outcomes.

use crate::store::tuple::{Tuple, columns};

columns! { "outcome_0", COLUMNS: DIGEST, SESSION, RECORDED_AT, EXPIRES_AT, CLASS, KEY, RECORDED_BY, RESPONSE, FINGERPRINT, TOKEN }
pub(super) type Columns<'a> = Tuple<'a, COLUMNS>;
