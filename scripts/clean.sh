#!/usr/bin/env bash
# Removes all that was built in this checkout. What is in the cache stays: it was built for the whole machine.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

[ -d "$root/target" ] || exit 0
rm -rf "$(private_dir)"
rm -rf "$root/target"
