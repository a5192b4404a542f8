//! What is left of client sessions after a backend or the whole server has been killed.

mod ended;
mod killing;
mod load;
mod prepared;
mod survival;
mod timeouts;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in survival:
    a_session_without_an_outcome_is_gone_after_a_crash,
    a_session_with_an_outcome_goes_on_after_a_crash,
    whatever_saves_a_session_lets_it_go_on_after_a_crash,
);

on_each_version!(in ended:
    a_late_registration_of_a_lost_session_fences_no_newer_one,
    an_ended_session_stays_ended_through_crashes,
    a_fenced_session_stays_fenced_through_crashes,
);

on_each_version!(in timeouts:
    a_crash_gives_a_saved_session_its_full_timeout_anew,
    an_orderly_restart_ends_no_session_for_those_who_watch_either,
    signs_of_life_that_restore_a_session_do_not_wait_for_each_other,
);

on_each_version!(in prepared:
    a_prepared_first_outcome_keeps_its_session_through_a_crash,
    a_prepared_registration_keeps_the_former_session_through_a_crash,
);

on_each_version!(in load:
    no_number_is_allocated_twice_whatever_crashes,
    crashes_at_random_lose_no_answer_and_repeat_no_numbered_request,
);
