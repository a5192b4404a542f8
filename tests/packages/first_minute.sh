#!/bin/bash
# first_minute.sh PACKAGE README TUTORIAL: what a new user types in the first minute, on a machine with only Debian's
# PostgreSQL 15: from dpkg or rpm, along README.md, to the first transfer of docs/tutorial.md. Then all of it is removed
# again, and no file is left. One line a test; the first that fails ends it. It changes the machine, so run.sh gives it
# one to throw away.
set -euo pipefail
package=$1 readme=$2 tutorial=$3
cd /
export DEBIAN_FRONTEND=noninteractive
case $package in
    *.deb) install=(dpkg -i) remove=(dpkg --purge postgresql-15-idempotence) ;;
    *.rpm)
        # Here rpm knows of no server and no C library. The directory is there on each system that is made of rpms.
        install=(rpm -i --nodeps) remove=(rpm -e idempotence_15)
        mkdir -p /usr/share/licenses
        ;;
esac
config=/etc/postgresql/15/main/postgresql.conf

# All files with their rights, but for what the server and the package manager write for themselves.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /mnt -o -path /var/log \
        -o -path /var/lib/postgresql/15/main -o -path '/var/lib/dpkg/*-old' -o -path /root/.rpmdb \) -prune \
        -o -printf '%p %m %u:%g %l\n' | sort
}
# blocks PAGE SECTION LANGUAGE: the blocks of a language in a section of a page; without a name, those before all sections.
blocks() {
    awk -v section="$2" -v language="$3" '
        BEGIN { here = section == "" }
        /^## / { here = $0 == "## " section }
        /^```/ { on = on ? "" : "block " substr($0, 4); next }
        here && on == "block " language { print }' "$1"
}
psql() { runuser -u postgres -- psql -X -v ON_ERROR_STOP=1 "$@"; }

files >/tmp/before
cp "$config" /tmp/config
pg_ctlcluster 15 main start
started=$(psql -Atc 'SELECT pg_postmaster_start_time()')
SECONDS=0
"${install[@]}" "$package" | tee /tmp/said
grep -q shared_preload_libraries /tmp/said
[ "$(psql -Atc 'SELECT pg_postmaster_start_time()')" = "$started" ]
echo 'ok installing says what to do, and restarts nothing'

blocks "$readme" Install '' | grep . | tee -a "$config"
pg_ctlcluster 15 main restart
blocks "$readme" Install sql | psql
{ echo 'SET ROLE app;' && blocks "$tutorial" '' sql && blocks "$tutorial" 'A single statement' sql; } |
    psql | tee /tmp/answer
grep -q 'succeeded | f .*"moved": 5' /tmp/answer
echo "ok a transfer $SECONDS s after ${install[0]}"
[ "$SECONDS" -lt 60 ]
echo 'ok in less than a minute'
grep -q 'succeeded | t .*"moved": 5' /tmp/answer
echo 'ok a retry gets the same answer'

psql -c 'DROP OWNED BY app' -c 'DROP EXTENSION idempotence' -c 'DROP ROLE app'
cp /tmp/config "$config"
"${remove[@]}"
pg_ctlcluster 15 main restart
pg_ctlcluster 15 main stop
files | diff /tmp/before -
echo 'ok removed without a trace'
