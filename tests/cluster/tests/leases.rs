//! Leases: who may complete a request, whatever happens to workers and servers, and how waiters learn of it.

mod load;
mod sessions;
mod standby;
mod stopped;
mod waiting;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in load:
    each_request_is_recorded_once_whatever_workers_and_servers_do,
    unlogged_claims_that_a_crash_takes_away_never_record,
    a_failover_under_load_revives_no_claim,
);

on_each_version!(in stopped:
    a_worker_that_was_stopped_for_longer_than_its_lease_is_refused,
    a_worker_that_nobody_challenged_goes_on_after_its_lease,
);

on_each_version!(in sessions:
    a_session_with_a_lease_goes_on_after_a_crash,
);

on_each_version!(in standby:
    a_promoted_standby_keeps_the_claims_that_it_received,
    tokens_that_a_failover_lost_complete_nothing,
);

on_each_version!(in waiting:
    a_waiter_learns_of_a_prepared_record_where_the_library_is_preloaded,
    a_waiter_learns_of_a_prepared_record_where_it_is_not,
    a_waiter_holds_nothing_and_looks_seldom,
    a_waiter_looks_seldom_however_often_it_is_woken,
);
