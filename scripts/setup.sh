#!/usr/bin/env bash
# setup.sh [lint|test]: installs what `make demo` and `make bench` need, with `lint` what the lints need too, or with
# `test` what the whole suite needs.
# If everything is there, it returns quickly and changes nothing.
#
# PG15_CONFIG to PG18_CONFIG name servers to use instead of Debian's 15 and of those that we make.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

packages=(gcc libc6-dev make clang libclang1)
[ -n "${PG15_CONFIG:-}${PG_CONFIG:-}" ] || packages+=(postgresql-15 postgresql-server-dev-15)
[ -z "${1:-}" ] || packages+=(build-essential shellcheck)
if [ "${1:-}" = test ]; then
    packages+=(python3-venv pgbouncer prometheus prometheus-postgres-exporter prometheus-sql-exporter)
    # Debian's extensions go with Debian's server only.
    [ -n "${PG15_CONFIG:-}" ] || packages+=(postgresql-15-cron postgresql-15-repack)
    # A node that is not Debian's will do as well.
    { command -v node && command -v npm; } >/dev/null || packages+=(nodejs npm)
    [ -n "${PG16_CONFIG:-}" ] || packages+=(patchelf)
    [ -n "${PG17_CONFIG:-}" ] && [ -n "${PG18_CONFIG:-}" ] ||
        packages+=(perl bison flex bzip2 zlib1g-dev)
fi

"$root/scripts/packages.sh" "${packages[@]}" ||
    die "set-up is incomplete. A PostgreSQL 15 that is there already can be named: PG15_CONFIG=..."
# It goes with Debian's server only. Without it, its suite is skipped.
[ "${1:-}" != test ] || [ -n "${PG15_CONFIG:-}" ] || "$root/scripts/packages.sh" postgresql-15-plproxy ||
    say "the suite plproxy is going to be skipped"
# A suite whose program is missing is skipped.
[ "${1:-}" != test ] || "$root/scripts/packages.sh" "${fleet_packages[@]}" ||
    say "without ${fleet_packages[*]}, suites are left out"
[ "${1:-}" != test ] || "$root/scripts/packages.sh" rabbitmq-server || say "its consumer is not tested"
if [ "${1:-}" = test ]; then
    for version in "${test_versions[@]}"; do
        "$root/scripts/test_server.sh" "$version" >/dev/null
    done
    [ -n "${PG18_CONFIG:-}" ] ||
        "$root/scripts/pg_repack.sh" "$("$root/scripts/test_server.sh" 18)"
fi
