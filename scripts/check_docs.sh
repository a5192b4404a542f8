#!/usr/bin/env bash
# check_docs.sh: fails if a page has more words than it may have, if a table of docs/benchmarks.md is not a part of what
# was measured, or if CONTRIBUTING.md says of something that it is decided in a file that is not there, or in a
# function, type or view that none of the files named has.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

# The words that a page may have, as wc -w counts them. A page that is not there needs no words.
declare -A words_max=(
    [README.md]=1500
    [docs/managed.md]=1700
    [CHANGELOG.md]=300
    [CONTRIBUTING.md]=2000
    [SECURITY.md]=1100
    [docs/administration.md]=1600
    [docs/benchmarks.md]=6000
    [docs/client-sessions.md]=2500
    [docs/consumers.md]=700
    [docs/design.md]=12000
    [docs/guide.md]=4100
    [docs/migration.md]=900
    [docs/operations.md]=10000
    [docs/reference.md]=15500
    [docs/releasing.md]=200
    [docs/scaling.md]=6000
)

failed=0
wrong() {
    echo "$1"
    failed=1
}

for page in *.md docs/*.md; do
    max=${words_max[$page]:-}
    words=$(wc -w <"$page")
    if [ -z "$max" ]; then
        wrong "$page: scripts/check_docs.sh does not say how many words it may have"
    elif [ "$words" -gt "$max" ]; then
        wrong "$page: $words words, at most $max"
    fi
done

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
