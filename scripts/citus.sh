#!/usr/bin/env bash
# citus.sh PG_CONFIG PRIVATE: makes sure that PRIVATE, which is the pg_config of the private copy of PG_CONFIG's server,
# has Citus. It is the Citus that is installed in the server, or it is built from CITUS_SOURCE: its source tree, or an
# archive of it. The source stays as it is; Citus is built once on a machine for each server and source. Ends with
# status 3 if there is neither.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

pg_config=$1
private=$2
version=$(server_version "$pg_config")
library=$("$pg_config" --pkglibdir)/citus.so
if [ -z "${CITUS_SOURCE:-}" ]; then
    # The private copy was made of the server.
    [ -e "$library" ] || exit 3
    exit 0
fi
[ -e "$CITUS_SOURCE" ] || die "there is no $CITUS_SOURCE"
source=$(cd "$(dirname "$CITUS_SOURCE")" && pwd)/$(basename "$CITUS_SOURCE")
[ -f "$source" ] || [ -x "$source/configure" ] || die "$source has no configure: CITUS_SOURCE names no source tree of Citus"

id=$(printf '%s %s %s' "$source" "$pg_config" "$(stat -c %Y "$source")" | cksum | cut -d' ' -f1)
built=$cache/citus-pg$version-$id
if [ ! -d "$built" ]; then
    "$root/scripts/packages.sh" build-essential liblz4-dev libzstd-dev
    mkdir -p "$cache"
    exec 9>"$cache/citus.lock"
    flock 9
fi
if [ ! -d "$built" ]; then
    say "building Citus for PostgreSQL $version (a minute or two, once)"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/src"
    # With the times of the files, by which make sees that configure is up to date.
    if [ -f "$source" ]; then
        tar -xf "$source" -C "$work/src" --strip-components=1
    else
        tar -C "$source" -cf - . | tar -xf - -C "$work/src"
    fi
    cd "$work/src"
    quietly ./configure PG_CONFIG="$(command -v "$pg_config")" --without-libcurl
    # PostgreSQL has extensions hide what they do not mark, and Citus does not mark the function by
    # which it is asked for a two-phase commit.
    options=(with_llvm=no CFLAGS_SL_MODULE=)
    quietly make -s -j"$(nproc)" "${options[@]}"
    quietly make -s install "${options[@]}" DESTDIR="$work/staging"
    cd "$root"
    mv "$work/staging" "$built"
fi
bindir=$("$pg_config" --bindir)
private_bindir=$("$private" --bindir)
tar -C "$built" -cf - . | tar -C "${private_bindir%"$bindir"}" -xf -
