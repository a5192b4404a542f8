#!/usr/bin/env bash
# installcheck.sh PG_CONFIG [regress|isolation|journal]: runs the golden SQL, the isolation specs, or those of both that
# are run again with sessions that have a journal; or all, against a running server that has the extension installed.
# PGHOST, PGPORT and PGUSER name the server. The test programs are those of PG_CONFIG's server.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(server_version "$1")
pg_config=$1
suite=${2:-}
programs=$(dirname "$("$pg_config" --pgxs)")/../test
results=$root/target/installcheck/pg$version

# run NAME PROGRAM INPUTDIR [OPTION...]
run() {
    local name=$1 program=$programs/$2 input=$3
    shift 3
    [ -x "$program" ] || die "no $program: install the development package of that server"
    rm -rf "${results:?}/$name"
    mkdir -p "$results/$name"
    "$program" --inputdir="$input" --outputdir="$results/$name" --schedule="$input/schedule" \
        --bindir="$("$pg_config" --bindir)" "$@" && return
    # There are no diffs if the program could not connect.
    [ ! -s "$results/$name/regression.diffs" ] || cat "$results/$name/regression.diffs"
    return 1
}

# A run that was broken off may have left its database a template, which cannot be dropped.
release() {
    local left="SELECT format('ALTER DATABASE %I IS_TEMPLATE false', datname) FROM pg_database
                WHERE datname = '$1' AND datistemplate"
    echo "$left \gexec" | "$("$pg_config" --bindir)/psql" -Xq -v ON_ERROR_STOP=1 postgres
}

# over_journals NAME SOURCES: an input directory with the tests of tests/NAME, where tests/NAME/journal has the schedule,
# what makes every session one with a journal, and the output where that differs. Prints it.
over_journals() {
    local from=$root/tests/$1 sources=$2 input=$results/$1-journal-input
    rm -rf "$input"
    mkdir -p "$input"
    cp -r "$from/$sources" "$from/expected" "$input"
    # Where a test looks into our tables and views, it looks into those that stand for them.
    find "$input" -type f -not -name 'setup.*' -exec sed -i -E -e 's/idempotence\.(outcomes|lease|unfinished|checkpoint|outcome_0)\>/over.\1/g' \
        -e 's/TRUNCATE over\.lease, over\.checkpoint;/DELETE FROM over.journal;/' {} +
    cp -r "$from/journal/." "$input"
    echo "$input"
}

failed=0
"$root/scripts/check_tests.sh" || failed=1
mkdir -p "$results"
case $suite in
    regress | '')
        release contrib_regression &&
            run regress regress/pg_regress "$root/tests/pg_regress" --dbname=contrib_regression || failed=1
        ;;&
    isolation | '')
        run isolation isolation/pg_isolation_regress "$root/tests/isolation" --dbname=isolation_regression \
            --load-extension=idempotence || failed=1
        ;;&
    journal | '')
        release journal_regression &&
            run journal-regress regress/pg_regress "$(over_journals pg_regress sql)" \
                --dbname=journal_regression || failed=1
        run journal-isolation isolation/pg_isolation_regress "$(over_journals isolation specs)" \
            --dbname=journal_isolation --load-extension=idempotence || failed=1
        ;;
esac
exit $failed
