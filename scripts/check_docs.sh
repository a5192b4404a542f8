#!/usr/bin/env bash
# check_docs.sh: fails if docs/benchmarks.md has a table row that no measured page in docs/benchmarks contains, or if the
# table "Where is it decided" in CONTRIBUTING.md names a file that does not exist, or a function, type or view that the
# named files do not contain.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

failed=0
wrong() {
    echo "$1"
    failed=1
}

measured=docs/benchmarks/measured.md
[ -s "$measured" ] || die "there is no $measured"
while IFS= read -r line; do
    wrong "docs/benchmarks.md: not in a page of docs/benchmarks: $line"
done < <(grep '^|' docs/benchmarks.md | grep -vxFf <(cat docs/benchmarks/*.md))

# What stands between backticks, one a line.
# shellcheck disable=SC2016
quoted() { grep -o '`[^`]*`' <<<"$1" | tr -d '`' || true; }

rows=0
while IFS='|' read -r _ question places names _; do
    rows=$((rows + 1))
    files=()
    for file in $(quoted "$places"); do
        [ -e "$file" ] || file=src/$file
        files+=("$file")
        [ -e "$file" ] || wrong "CONTRIBUTING.md,$question: there is no $file"
    done
    for name in $(quoted "$names"); do
        grep -qwF -- "${name##*::}" "${files[@]}" 2>/dev/null ||
            wrong "CONTRIBUTING.md,$question: ${files[*]} has no $name"
    done
done < <(sed -n '/^## Where is it decided/,/^## Recipes/p' CONTRIBUTING.md | grep '^| .*`')
[ "$rows" -gt 20 ] || die "the table in CONTRIBUTING.md is not found"
exit "$failed"
