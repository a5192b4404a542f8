#!/usr/bin/env bash
# pg_repack.sh PG_CONFIG: makes sure that the server that source_server.sh has built has pg_repack. Builds it
# from Debian's source package, since Debian itself builds it only for the server of its own release.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/debian_source.sh
. "$(dirname "$0")/debian_source.sh"

pg_config=$1
program=$("$pg_config" --bindir)/pg_repack
[ ! -x "$program" ] || exit 0

say "building pg_repack for $("$pg_config" --version)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch_source pg-repack forky sid >&2 || exit 1
mkdir "$work/src"
tar -xf "$work"/pg-repack_*.orig.tar.* -C "$work/src" --strip-components=1
quietly make -s -C "$work/src" PG_CONFIG="$pg_config"
# The program comes last: if it is there, everything is.
quietly make -s -C "$work/src/lib" install PG_CONFIG="$pg_config"
quietly make -s -C "$work/src/bin" install PG_CONFIG="$pg_config"
