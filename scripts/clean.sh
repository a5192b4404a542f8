#!/usr/bin/env bash
# Removes all that was built here. What was built for the whole machine stays: the tools, which
# take minutes, and the servers in the cache.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ -d "$root/target" ] || exit 0
rm -rf "$(private_dir)"
find "$root/target" -mindepth 1 -maxdepth 1 ! -name tools -exec rm -rf {} +
