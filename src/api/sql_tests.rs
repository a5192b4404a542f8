//! Tests of what stands both in Rust and in the SQL scripts: numbers of lock classes, names of the sweep's steps,
//! and letters in columns.

use crate::domain::class::Class;
use crate::domain::end::End;
use crate::domain::sequence::Order;
use crate::lock::LockClass;
use std::collections::BTreeSet;

/// All scripts. `scripts/schema.sh --check` sees to it that they are the same in the directory `sql`.
const SCRIPT: &str = include_str!(concat!("../../sql/idempotence--", env!("CARGO_PKG_VERSION"), ".sql"));

/// Checks that this text is in a script.
#[track_caller]
fn assert_in_sql(text: &str) {
    assert!(SCRIPT.contains(text), "no script has: {text}");
}

/// The numbers in the scripts, outside of comments, that have the form of a lock class.
fn lock_classes() -> BTreeSet<u16> {
    let code = SCRIPT.lines().filter(|line| !line.trim_start().starts_with("--"));
    let numbers = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric())).filter_map(|n| n.parse().ok());
    numbers.filter(|number| (0x1DE0..=0x1DFF).contains(number)).collect()
}

#[test]
fn views_name_the_lock_classes_that_they_mean() {
    let (sweep, request) = (LockClass::Sweep as u16, LockClass::Request as u16);
    let (least, greatest) = (request, LockClass::SaveOfRegistered as u16);
    assert!(!(least..=greatest).contains(&sweep));

    assert_in_sql(&format!("THEN idempotence.advisory_holders({sweep}) END AS held_by"));
    assert_in_sql(&format!(
        "l.objsubid OPERATOR(pg_catalog.>=) {least} AND l.objsubid OPERATOR(pg_catalog.<=) {greatest}\n"
    ));
    assert_eq!(lock_classes(), BTreeSet::from([request, sweep, greatest]));
}

#[test]
fn idem_sweep_takes_all_steps_in_their_order() {
    // The table itself has functions of the server in it, which a test cannot link.
    let table = include_str!("../sweep/mod.rs").split("Step::new(\"").skip(1);
    let steps = table.filter_map(|step| step.split('"').next()).collect::<Vec<_>>().join(",");
    assert_in_sql(&format!("FOREACH step IN ARRAY '{{{steps}}}'::pg_catalog.text[] LOOP"));
}

#[test]
fn views_and_comments_know_the_letters_of_outcomes() {
    let names = Class::ALL.map(|class| (char::from(class.letter()), class.status()));
    let [succeeded, failed, given_up, cancelled] = names;
    assert_eq!(failed.1, given_up.1);
    assert_in_sql(&format!(
        "CASE WHEN o.class OPERATOR(pg_catalog.=) '{}' THEN '{}' WHEN o.class OPERATOR(pg_catalog.=) '{}' THEN '{}' ELSE '{}' END AS status",
        succeeded.0, succeeded.1, cancelled.0, cancelled.1, failed.1
    ));
    assert_in_sql(&format!("o.class OPERATOR(pg_catalog.=) '{}'", given_up.0));
    let word = |class: Class| if class == Class::GivenUp { "given up" } else { class.status() };
    let letters = Class::ALL.map(|class| format!("{}: {}", char::from(class.letter()), word(class))).join(", ");
    assert_in_sql(&format!("('class',       '{letters}')"));
    assert_in_sql(&format!("COMMENT ON COLUMN idempotence.reply.class IS '{letters}, "));
}

#[test]
fn views_and_comments_know_the_letters_of_ends() {
    let word = |end| match end {
        End::Closed => "closed",
        End::Expired => "expired",
        End::Fenced => "fenced",
    };
    for end in End::ALL {
        let [saved, never_saved] = [true, false].map(|saved| char::from(end.letter(saved)));
        assert_in_sql(&format!(
            "WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{{{saved},{never_saved}}}'::pg_catalog.\"char\"[]) THEN '{}'",
            word(end)
        ));
    }
    let letters = End::ALL.map(|end| format!("{}: {}", char::from(end.letter(true)), word(end))).join(", ");
    assert_in_sql(&format!(
        "COMMENT ON COLUMN idempotence.session.ended IS 'how a client session ended; {letters}; a capital: "
    ));
}

#[test]
fn views_and_comments_know_the_letters_of_orders() {
    let [any, strict] = [Order::Any, Order::Strict].map(|order| char::from(order.letter()));
    assert_in_sql(&format!(
        "CASE WHEN COALESCE(l.ordering, s.ordering) OPERATOR(pg_catalog.=) '{any}' THEN 'any' ELSE 'strict' END"
    ));
    let letters = format!("{any}: any, {strict}: strict';");
    assert_in_sql(&format!("idempotence.session.ordering IS 'of a client session''s numbers; {letters}"));
    assert_in_sql(&format!("idempotence.session_live.ordering IS 'of its numbers; {letters}"));
}
