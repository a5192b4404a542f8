//! Attacks by a role that may use the extension and create objects in a schema. Each module is a way of attack.

mod names;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in names:
    an_operator_of_a_caller_makes_nobody_superuser,
    what_a_role_puts_in_the_way_is_run_by_nobody_else,
);
