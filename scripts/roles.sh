#!/usr/bin/env bash
# roles.sh [--check]: copies the short tables of roles into docs/reference.md, from the expected output of the golden test
# roles, which finds them out by calling each function and reading each view. With --check it changes nothing, and
# fails if the reference has other tables.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

source=tests/pg_regress/expected/roles.out target=docs/reference.md
begin='<!-- The tables up to the next mark come from scripts/roles.sh. -->' end='<!-- End of the tables. -->'

tables=$(sed -n '/^-- Short tables, for the reference/,${/^|[ -]/p}' "$source" | sed '1!s/^| views and tables /\n&/')
[ "$(grep -c '^| `' <<<"$tables")" -gt 8 ] || die "$source has no tables of roles"
for mark in "$begin" "$end"; do
    [ "$(grep -cxF -- "$mark" "$target")" = 1 ] || die "$target lacks the mark: $mark"
done
copied=$(mktemp)
trap 'rm -f "$copied"' EXIT
awk -v begin="$begin" -v end="$end" -v tables="$tables" '
    $0 == end { inside = 0 }
    !inside { print }
    $0 == begin { inside = 1; print ""; print tables; print "" }' "$target" >"$copied"
if [ "${1:-}" = --check ]; then
    diff -u "$target" "$copied" || die "$target has other tables of roles than the golden test roles: call scripts/roles.sh"
else
    cat "$copied" >"$target"
fi
