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
# With what the suite builds. The demo waits for the server, so to optimize it would take longer than it saves.
cargo build --quiet --locked --target-dir target/check -p idempotence-demo
exec target/check/debug/idempotence-demo --pg-config "$private" --dir "$(private_dir)" "$@"
