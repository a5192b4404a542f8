#!/usr/bin/env bash
# test_server.sh VERSION: makes sure that this machine has the server on which that major version is tested, and
# prints its pg_config. The servers are Debian's 15, the 16 of a Python wheel, and 17 and 18 built with assertions.
# PG15_CONFIG to PG18_CONFIG name servers to use instead.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$1
named=PG${version}_CONFIG
if [ -n "${!named:-}" ]; then
    found=$(server_version "${!named}")
    [ "$found" = "$version" ] || die "$named names a server of version $found"
    command -v "${!named}"
    exit
fi
case $version in
    15) command -v "$pg15_config" || die "there is no $pg15_config: install postgresql-15" ;;
    16) "$root/scripts/wheel_server.sh" ;;
    *) "$root/scripts/source_server.sh" "$version" ;;
esac
