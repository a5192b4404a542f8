#!/usr/bin/env bash
# packages.sh PACKAGE...: installs those of the named Debian packages that are missing. Calls apt-get only if a
# package is missing. Updates apt's lists only if they do not know the package or are out of date. Upgrades nothing
# that is installed: where a package's newest version would, an older version that fits is taken, or none.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

command -v dpkg-query >/dev/null || die "this is no Debian: install what answers to $*"

missing=()
for package in "$@"; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    sudo=()
elif sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; then
    sudo=(sudo)
else
    die "packages are missing, and there is no way here to become root. As root, run:" \
        "apt-get install ${missing[*]}"
fi

# Prints the missing packages that apt's lists do not know.
unknown() {
    local package
    for package in "${missing[@]}"; do
        apt-cache show --no-all-versions "$package" >/dev/null 2>&1 || printf '%s ' "$package"
    done
}

# Prints what apt-get would upgrade or remove if it installed these, or its refusal.
disturbed() {
    local plan
    plan=$(LC_ALL=C apt-get -s --no-upgrade --no-install-recommends install "$@" 2>&1) || {
        sed -n 's/^E: //p' <<<"$plan"
        return
    }
    sed -nE 's/^(Inst ([^ ]+) \[.*|Remv ([^ ]+) .*)/\2\3/p' <<<"$plan"
}

# Prints the missing packages, each with a version where its newest one would upgrade what is installed.
fitting() {
    local package version
    for package in "${missing[@]}"; do
        version=''
        if [ -n "$(disturbed "$package")" ]; then
            for version in $(apt-cache madison "$package" | awk '{ print $3 }'); do
                [ -n "$(disturbed "$package=$version")" ] || break
            done
        fi
        echo "$package${version:+=$version}"
    done
}

install_missing() {
    local wanted=("${missing[@]}") others
    [ -z "$(disturbed "${wanted[@]}")" ] || mapfile -t wanted < <(fitting)
    others=$(disturbed "${wanted[@]}" | paste -sd ' ')
    [ -z "$others" ] || die "${missing[*]} cannot be installed unless what is installed is upgraded ($others), and" \
        "this upgrades nothing. To upgrade it yourself, run: apt-get install ${missing[*]}"
    quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-upgrade --no-install-recommends install "${wanted[@]}"
}

# When they are first installed, Debian's server packages make a cluster and start it, and other packages start their
# services. Nobody asked for a cluster here, and it would take port 5432; a Prometheus would listen to everybody. The
# tests start their own.
no_main_cluster=/etc/postgresql-common/createcluster.d/idempotence-no-main-cluster.conf
no_start=/usr/sbin/policy-rc.d made=()
services=(pgbouncer redis-server prometheus prometheus-postgres-exporter prometheus-sql-exporter
    etcd-server haproxy patroni pgpool2)
trap '[ ${#made[@]} -eq 0 ] || "${sudo[@]}" rm -f "${made[@]}"' EXIT
if [[ " ${missing[*]}" == *" postgresql-"* ]]; then
    "${sudo[@]}" mkdir -p "${no_main_cluster%/*}"
    echo 'create_main_cluster = false' | "${sudo[@]}" tee "$no_main_cluster" >/dev/null
    made+=("$no_main_cluster")
fi
# Debian asks this program whether a package may start a service. 101: no.
if ! [ -e "$no_start" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$no_start" >/dev/null
    "${sudo[@]}" chmod 755 "$no_start"
    made+=("$no_start")
fi

say "installing the Debian packages ${missing[*]}"
if [ -n "$(unknown)" ] || ! (install_missing) 2>/dev/null; then
    quietly "${sudo[@]}" apt-get -qq update
    absent=$(unknown)
    [ -z "$absent" ] || die "this release of Debian has no package ${absent% }"
    install_missing
fi

# Nor at the next start of the machine.
for package in "${services[@]}"; do
    if [[ " ${missing[*]} " == *" $package "* ]] && command -v systemctl >/dev/null; then
        # The package etcd-server has the service etcd.
        "${sudo[@]}" systemctl disable "${package/#etcd-server/etcd}" >/dev/null 2>&1 || true
    fi
done
