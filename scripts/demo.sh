#!/usr/bin/env bash
# demo.sh [OPTION...]: runs the demo on a private copy of PG_CONFIG's server (default: Debian's
# PostgreSQL 15). Does all the set-up itself. `demo.sh --help` lists the options.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
scripts/setup.sh
private=$(scripts/installation.sh "${PG_CONFIG:-$pg15_config}")
say "building the demo"
cargo build --quiet --release -p idempotence-demo
exec target/release/idempotence-demo --pg-config "$private" --dir "$(private_dir)" "$@"
