//! The view `health` and `idem_ready`: what takes several connections, a restart, a standby or a wrong clock. The golden
//! test `health` brings about the other rows, and looks that no row was forgotten: it names those that are here.

mod clock;
mod locks;
mod server;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in locks:
    who_holds_a_request_for_long_is_named,
    those_who_wait_are_counted,
    whoever_holds_up_the_holders_is_named,
    deadlocks_are_counted,
    a_locked_table_is_told_of,
    a_lock_that_is_waited_for_is_told_of,
);

on_each_version!(in server:
    a_launcher_that_ends_again_and_again_is_told_of,
    a_standby_is_well_and_not_ready,
    settings_of_the_server_are_told_from_those_of_the_monitor,
    a_synchronous_standby_that_is_away_is_told_of,
    which_databases_are_visited_is_told,
    that_nobody_sweeps_is_told_of_at_once,
);

on_each_version!(in clock: a_clock_that_is_set_is_told_of);
