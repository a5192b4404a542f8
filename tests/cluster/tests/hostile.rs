//! Attacks by a role that may use the extension and create objects in a schema. Each module is a way of attack.

mod hiding;
mod journals;
mod locks;
mod names;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in names:
    an_operator_of_a_caller_makes_nobody_superuser,
    what_a_role_puts_in_the_way_is_run_by_nobody_else,
);

on_each_version!(in journals:
    a_journal_runs_no_code_in_the_processes_of_others,
    a_change_that_comes_with_a_call_is_not_executed,
    changes_again_and_again_are_not_executed,
    a_partition_of_a_journal_is_an_ordinary_table,
    a_parallel_worker_runs_no_code_of_others,
    a_temporary_table_is_no_journal,
    a_table_in_the_place_of_a_journal_is_not_used,
    a_journal_that_changed_hands_under_an_old_snapshot_is_not_used,
    a_journal_that_is_locked_stops_nobody,
    a_restore_does_not_wait_for_ever,
);

on_each_version!(in hiding:
    a_crowd_of_leases_hides_nobodys,
    a_flood_of_errors_hides_nobodys,
    a_name_fools_no_reader,
    a_sweep_looks_with_the_rights_of_the_owner,
    a_crowd_of_journals_hides_no_sweep,
    an_idle_transaction_holds_up_no_export,
);

on_each_version!(in locks:
    what_a_role_has_locked_hides_nothing_behind_it,
    exports_without_a_pause_keep_no_sweep_away,
    a_response_that_no_text_can_hold_is_refused,
    a_search_by_prefix_that_must_fail_only_fails,
    nobody_else_uses_the_row_types,
);
