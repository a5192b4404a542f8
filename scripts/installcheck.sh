#!/usr/bin/env bash
# installcheck.sh PG_CONFIG [regress|isolation]: runs the golden SQL, the isolation specs, or both, against a
# running server that has the extension installed. PGHOST, PGPORT and PGUSER name the server. The test programs
# are those of PG_CONFIG's server.
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
    local name=$1 program=$programs/$2 input=$root/tests/$3
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

failed=0
"$root/scripts/check_tests.sh" || failed=1
if [ "$suite" != isolation ]; then
    release contrib_regression &&
        run regress regress/pg_regress pg_regress --dbname=contrib_regression || failed=1
fi
if [ "$suite" != regress ]; then
    run isolation isolation/pg_isolation_regress isolation --dbname=isolation_regression \
        --load-extension=idempotence || failed=1
fi
exit $failed
