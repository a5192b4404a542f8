//! Goal: the search finds mistakes in the protocol.
//! Method: each known mistake is put into the steps. The search must find that it breaks the promise that it is a
//! mistake against. The steps to the broken promise are printed.

use idempotence_protocol_model::promises::{I1, I2, I11, I12, I13, KEPT, SAID, TO_ITS_END};
use idempotence_protocol_model::setup::{Fault, Setup};
use stateright::{Checker, HasDiscoveries, Model};

/// Demands that the fault breaks these promises.
fn breaks(setup: Setup, fault: Fault, promises: &[&'static str]) {
    let wanted = HasDiscoveries::AllOf(promises.iter().copied().collect());
    let checker = setup.with(fault).checker().threads(2).finish_when(wanted).spawn_bfs().join();
    println!("{fault:?}: {} states", checker.unique_state_count());
    for promise in promises {
        let found = checker.discovery(promise);
        let Some(path) = found else { panic!("{fault:?} should break this promise: {promise}") };
        println!("  broken is: {promise}");
        for step in path.into_actions() {
            println!("    {step:?}");
        }
    }
}

#[test]
fn a_token_that_is_not_checked() {
    breaks(Setup::KEY, Fault::TokenUnchecked, &[I11]);
}

#[test]
fn a_lease_that_is_taken_over_before_its_end() {
    breaks(Setup::KEY, Fault::TakenOverEarly, &[TO_ITS_END]);
}

#[test]
fn a_record_that_leaves_the_lease() {
    breaks(Setup::KEY, Fault::LeaseKeptByRecord, &[I1, I2]);
}

#[test]
fn settling_without_a_look_under_the_lock() {
    breaks(Setup::KEY, Fault::SettledWithoutLook, &[I12]);
}

#[test]
fn a_token_that_comes_again_after_a_crash() {
    breaks(Setup { logged: false, ..Setup::KEY }, Fault::TokenCounted, &[I11]);
}

#[test]
fn a_number_given_up_that_leaves_its_lease() {
    breaks(Setup::SLOT, Fault::LeaseKeptByAck, &[I11, I13]);
}

#[test]
fn a_checkpoint_that_leaves_an_expired_lease() {
    breaks(Setup::EXPIRING, Fault::LeaseKeptByCheckpoint, &[I11]);
}

#[test]
fn a_logged_lease_that_a_crash_takes() {
    breaks(Setup::KEY, Fault::LeaseLost, &[KEPT, SAID]);
}
