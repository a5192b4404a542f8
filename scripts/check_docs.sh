#!/usr/bin/env bash
# check_docs.sh: fails if CONTRIBUTING.md says of something that it is decided in a file that is not there, or in a
# function, type or view that none of the files named has.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

# What stands between backticks, one a line.
# shellcheck disable=SC2016
quoted() { grep -o '`[^`]*`' <<<"$1" | tr -d '`' || true; }

rows=0 failed=0
while IFS='|' read -r _ question places names _; do
    rows=$((rows + 1))
    files=()
    for file in $(quoted "$places"); do
        [ -e "$file" ] || file=src/$file
        files+=("$file")
        [ -e "$file" ] || { echo "CONTRIBUTING.md,$question: there is no $file" && failed=1; }
    done
    for name in $(quoted "$names"); do
        grep -qwF -- "${name##*::}" "${files[@]}" 2>/dev/null ||
            { echo "CONTRIBUTING.md,$question: ${files[*]} has no $name" && failed=1; }
    done
done < <(sed -n '/^## Where is it decided/,/^## Recipes/p' CONTRIBUTING.md | grep '^| .*`')
[ "$rows" -gt 20 ] || die "the table in CONTRIBUTING.md is not found"
exit $failed
