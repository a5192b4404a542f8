#!/usr/bin/env bash
# Removes all that was built in this checkout, except the tools, which take minutes to build. The servers in the
# cache stay too: they were built for the whole machine.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ -d "$root/target" ] || exit 0
rm -rf "$(private_dir)"
find "$root/target" -mindepth 1 -maxdepth 1 ! -name tools -exec rm -rf {} +
