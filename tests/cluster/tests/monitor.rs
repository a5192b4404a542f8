//! What a DBA sees: the counters, the requests in flight, the newest errors, and what the log tells of requests.

mod books;
mod bounded;
mod client;
mod counters;
mod errors;
mod expect;
mod holder;
mod in_flight;
mod kept;
mod logged;
mod preloaded;
mod shown;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in counters:
    counters_equal_what_the_clients_have_counted,
);

on_each_version!(in in_flight:
    in_flight_shows_what_is_held_at_each_moment,
);

on_each_version!(in shown:
    requests_without_room_are_counted_and_long_names_are_whole,
    without_any_room_requests_are_counted,
    prepared_transactions_show_by_name_and_after_a_restart_by_gid,
    a_crash_leaves_no_request_in_flight,
    a_role_sees_the_requests_of_its_sessions,
);

on_each_version!(in kept:
    counters_live_through_a_restart_and_begin_anew_after_a_crash,
    a_file_that_cannot_be_read_is_ignored_with_a_line_of_the_log,
    fewer_lines_than_were_saved_keep_the_sums,
    a_standby_counts_its_own_replays,
);

on_each_version!(in bounded:
    sums_are_exact_where_sessions_are_many_and_lines_few,
    sessions_that_are_used_once_leave_the_lines_to_others,
    databases_share_the_lines_and_keep_their_sums,
    what_a_forgotten_session_has_counted_stays_in_the_sum,
);

on_each_version!(in errors:
    errors_show_who_was_refused_what,
    as_many_errors_are_kept_as_the_setting_says,
    without_preloading_all_but_the_views_works,
);

on_each_version!(in logged:
    each_line_names_the_request_that_is_open,
    a_name_that_the_client_cannot_read_keeps_no_message_away,
    a_long_wait_is_logged_once_with_both_sides,
    the_log_of_a_wait_puts_off_no_deadlock,
    the_commit_logs_what_became_of_requests,
);
