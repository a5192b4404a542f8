#!/usr/bin/env bash
# installation.sh PG_CONFIG [PROFILE]: builds the extension and installs it into a private copy of the server
# that PG_CONFIG belongs to. Prints the copy's pg_config.
#
# PostgreSQL finds its files relative to its programs, so a copy works wherever it is. With a copy nothing on the
# machine is changed, nobody need be root, and two checkouts do not disturb each other.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(server_version "$1")
pg_config=$(own_pg_config "$1")
profile=${2:-release}
bindir=$("$pg_config" --bindir)
copy=$(private_dir)/pg$version

pkglibdir=$("$pg_config" --pkglibdir)
sharedir=$("$pg_config" --sharedir)
# Tests build small modules with the headers, where the server has any.
headers=$("$pg_config" --includedir-server)
[ -d "$headers" ] || headers=''
server_files() {
    tar -C / -cf - "${bindir#/}" "${pkglibdir#/}" "${sharedir#/}" ${headers:+"${headers#/}"}
}
if ! cmp -s "$bindir/postgres" "$copy$bindir/postgres"; then
    rm -rf "$copy" "$copy.new"
    mkdir "$copy.new"
    server_files | tar -C "$copy.new" -xf -
    mv "$copy.new" "$copy"
else
    # Other extensions may have been installed into the server since.
    server_files | tar -C "$copy" --skip-old-files -xf -
fi

say "building the extension for PostgreSQL $version"
quietly make -s -C "$root" install PG_CONFIG="$pg_config" PROFILE="$profile" DESTDIR="$copy"
echo "$copy$bindir/pg_config"
