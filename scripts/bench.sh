#!/usr/bin/env bash
# bench.sh [OPTION...]: runs the benchmark on a private copy of PG_CONFIG's server (default: Debian's
# PostgreSQL 15). Does all the set-up itself. `bench.sh --help` lists the options.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
scripts/setup.sh
# The rows that need these do what they can without.
scripts/packages.sh linux-perf valgrind pgbouncer ||
    say "going on: without linux-perf and valgrind CPU time takes the place of instructions, and without pgbouncer its" \
        "lines are left out"
private=$(scripts/installation.sh "${PG_CONFIG:-$pg15_config}")
say "building the benchmark"
cargo build --quiet --release -p idempotence-bench
exec target/release/idempotence-bench --pg-config "$private" --dir "$(private_dir)" "$@"
