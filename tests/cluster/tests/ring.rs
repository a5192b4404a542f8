//! The ring of segments under load, under changes of how long outcomes live, and after restores. No outcome is
//! gone before its time, and no outcome is there twice.

mod aging;
mod lifetimes;
mod load;
mod restored;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in load:
    outcomes_live_for_their_time_while_the_ring_turns,
    restores_and_sweeps_do_not_meet,
);

on_each_version!(in lifetimes:
    changes_of_ttl_and_retention_drop_no_outcome_that_lives,
    a_year_among_days_does_not_keep_the_days,
    many_that_live_for_years_keep_nothing_of_others,
    two_segments_that_are_due_at_once_are_both_emptied,
);

on_each_version!(in restored:
    a_restored_ring_keeps_what_was_restored,
    a_large_restored_segment_is_looked_through_in_parts,
);
