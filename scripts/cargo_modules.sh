#!/usr/bin/env bash
# Makes sure that the lints have the cargo-modules that they need. Later versions need a newer compiler.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

exec "$root/scripts/cargo_tool.sh" cargo-modules 0.27.0 release
