//! Goal: the protocol of leases keeps its promises in every order of steps.
//! Method: all states are gone through. The number of states must not fall below what the search had when it was
//! written: a search that stops early finds nothing.

use idempotence_protocol_model::setup::Setup;
use stateright::{Checker, Expectation, Model};
use std::time::Instant;

/// Goes through all states, which are at least `least`.
fn search(name: &str, setup: Setup, least: usize) {
    let began = Instant::now();
    let checker = setup.checker().threads(2).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, {depth} steps deep, {:.1} s", began.elapsed().as_secs_f64());
    assert!(checker.is_done(), "{name}: the search was not completed");
    let mut found = checker.discoveries();
    for property in setup.properties() {
        match (property.expectation, found.remove(property.name)) {
            (Expectation::Sometimes, Some(_)) | (Expectation::Always, None) => {}
            (Expectation::Sometimes, None) => panic!("{name}: this never happens: {}", property.name),
            (_, path) => {
                let steps = path.map(|path| path.into_actions()).unwrap_or_default();
                panic!("{name}: this promise is broken: {}\n{steps:#?}", property.name);
            }
        }
    }
    assert!(states >= least, "{name}: {states} states are fewer than {least}");
}

#[test]
fn one_request() {
    search("one request", Setup { ticks: 4, ..Setup::KEY }, 2_000_000);
}

#[test]
fn one_request_with_unlogged_leases() {
    search("one request, unlogged", Setup { ticks: 4, logged: false, ..Setup::KEY }, 1_200_000);
}

#[test]
fn one_request_that_is_given_up_after_two_attempts() {
    search("one request, two attempts", Setup { max_attempts: Some(2), ..Setup::KEY }, 770_000);
}

#[test]
fn one_request_that_expires() {
    search("one request, expiring", Setup { leases: 3, ..Setup::EXPIRING }, 4_800_000);
}

#[test]
fn one_request_where_all_happens_in_the_same_moment() {
    search("one request, same moment", Setup { same_moment: true, ticks: 4, ..Setup::KEY }, 150_000);
}

#[test]
fn one_slot() {
    search("one slot", Setup::SLOT, 9_000_000);
}

#[test]
fn one_slot_with_unlogged_leases() {
    search("one slot, unlogged", Setup { logged: false, ..Setup::SLOT }, 7_300_000);
}

#[test]
fn one_slot_where_all_happens_in_the_same_moment() {
    search("one slot, same moment", Setup { same_moment: true, ..Setup::SLOT }, 1_100_000);
}

#[test]
#[ignore = "takes minutes, and gigabytes of memory"]
fn one_request_at_length() {
    search("one request, at length", Setup { ticks: 5, leases: 5, ..Setup::KEY }, 14_900_000);
}

#[test]
#[ignore = "takes minutes, and gigabytes of memory"]
fn one_request_that_expires_at_length() {
    search("one request, expiring, at length", Setup::EXPIRING, 22_000_000);
}

#[test]
#[ignore = "takes minutes, and gigabytes of memory"]
fn one_slot_at_length() {
    search("one slot, at length", Setup { leases: 4, ..Setup::SLOT }, 45_000_000);
}

#[test]
#[ignore = "takes minutes, and gigabytes of memory"]
fn one_slot_with_unlogged_leases_at_length() {
    search("one slot, unlogged, at length", Setup { leases: 4, logged: false, ..Setup::SLOT }, 35_000_000);
}
