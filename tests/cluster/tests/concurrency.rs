//! Many connections in one session: each request takes effect once, and each client gets its answer.
//!
//! The isolation specs test the small races, step by step. These tests hold the same promises against load.
//! Only the extension prevents a double effect, because table `effect` has no constraint.

mod races;
mod readers;
mod storm;
mod work;

use idempotence_cluster_tests::{on_all_versions, on_each_version};

on_each_version!(in races:
    of_those_who_begin_at_once_one_executes_and_all_get_its_answer,
    overlapping_batches_of_an_inbox_tell_each_key_as_new_once,
);

on_each_version!(in storm:
    a_hundred_thousand_requests_take_effect_once_through_rollbacks_cancels_and_kills,
);

on_each_version!(in readers:
    replays_of_one_request_wait_for_nothing_and_hold_nothing,
    a_lookup_never_misses_a_request_that_was_begun,
);

// The signal handlers differ between versions.
on_all_versions!(in readers:
    a_cancel_is_never_taken_for_the_end_of_a_wait,
);
