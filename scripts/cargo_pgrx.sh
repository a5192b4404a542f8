#!/usr/bin/env bash
# Makes sure that there is the cargo-pgrx that goes with the pgrx in Cargo.toml.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# It has little to do itself, so to optimize it would take longer than is ever saved.
exec "$root/scripts/cargo_tool.sh" cargo-pgrx "$(sed -n 's/^pgrx = .*"=\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")" dev
