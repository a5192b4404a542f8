//! The background worker: it does its work in every database that wants it, and it holds nobody up.

mod crashes;
mod databases;
mod delays;
mod journals;
mod sessions;
mod watch;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in sessions:
    silent_sessions_end_in_time_and_others_do_not,
    ended_sessions_are_deleted_a_retention_later,
    saved_sessions_are_back_at_work_after_a_crash,
);

on_each_version!(in databases:
    databases_and_extensions_come_and_go,
    an_extension_dropped_during_a_visit_is_no_failure,
    only_the_databases_named_are_visited,
    a_database_left_out_may_be_swept_once_a_day,
    an_error_in_one_database_is_logged_once_and_stops_no_other,
);

on_each_version!(in delays:
    nobody_is_held_up,
    a_stop_is_heeded_at_once,
    what_delays_the_ring_is_named,
);

on_each_version!(in journals:
    a_journal_that_cannot_be_swept_keeps_the_worker_from_nothing,
    a_visit_that_does_not_end_stops_no_other_database,
    a_subtransaction_that_cannot_end_ends_no_worker,
);

on_each_version!(in crashes:
    a_standby_rests_until_it_is_promoted,
    random_kills_under_load_leave_everything_right,
);
