#!/usr/bin/env bash
# Checks that each golden test and each isolation spec has its expected output and is in its schedule once, and
# that the schedules name nothing else; and that each file of cluster tests is in their program. A test that is missing there
# would be skipped in silence.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

wrong=0
complain() {
    printf 'error: %s\n' "$*" >&2
    wrong=1
}

# check DIRECTORY SOURCES SUFFIX
check() {
    local dir=$1 sources=$1/$2 suffix=$3 scheduled there name
    [ -s "$dir/schedule" ] || die "there is no tests/$dir/schedule"
    scheduled=$(sed -n 's/^test: *//p' "$dir/schedule" | tr -s ' ' '\n' | sort)
    there=$(find "$sources" -name "*$suffix" -printf '%f\n' | sed "s/$suffix\$//" | sort)
    for name in $(comm -23 <(echo "$scheduled") <(echo "$there")); do
        complain "tests/$dir/schedule names $name, twice or without a tests/$sources/$name$suffix"
    done
    for name in $(comm -13 <(echo "$scheduled") <(echo "$there")); do
        complain "tests/$sources/$name$suffix is not in tests/$dir/schedule"
    done
    # The schedule of those that are run again over journals names what is there.
    for name in $(sed -n 's/^test: *//p' "$dir/journal/schedule" | tr -s ' ' '\n'); do
        [ -e "$sources/$name$suffix" ] || [ -e "$dir/journal/${sources##*/}/$name$suffix" ] ||
            complain "tests/$dir/journal/schedule names $name, which is not there"
    done
    for name in $there; do
        [ -e "$dir/expected/$name.out" ] ||
            complain "tests/$sources/$name$suffix has no tests/$dir/expected/$name.out"
    done
}

cd "$root/tests"
check pg_regress sql .sql
check isolation specs .spec
for file in cluster/tests/*; do
    name=$(basename "$file" .rs)
    [ "$name" = main ] || grep -qx "mod $name;" cluster/tests/main.rs ||
        complain "tests/$file is not in tests/cluster/tests/main.rs"
done
exit $wrong
