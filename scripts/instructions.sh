#!/usr/bin/env bash
# instructions.sh [OPTION...]: counts the instructions of a request, a replay and their like, for use while working on their
# speed. Takes less than two minutes where `perf` can count, and several where valgrind does. Prints the section of the
# benchmark's page. The options are those of bench.sh.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
page=$root/target/instructions.md
scripts/bench.sh --quick --rows instructions --out "$page" "$@"
sed -n '/^## Instructions$/,/^## [^I]/{/^## [^I]/!p}' "$page"
