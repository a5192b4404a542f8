#!/usr/bin/env bash
# packages.sh PACKAGE...: installs those of the named Debian packages that are missing. Calls apt-get only if a
# package is missing. Updates apt's lists only if they do not know the package or are out of date.
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

install_missing() {
    quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "${missing[@]}"
}

# When they are first installed, Debian's server packages make a cluster and start it. Nobody asked for a cluster
# here, and it would take port 5432.
no_main_cluster=/etc/postgresql-common/createcluster.d/idempotence-no-main-cluster.conf
if [[ " ${missing[*]}" == *" postgresql-"* ]]; then
    "${sudo[@]}" mkdir -p "${no_main_cluster%/*}"
    echo 'create_main_cluster = false' | "${sudo[@]}" tee "$no_main_cluster" >/dev/null
    trap '"${sudo[@]}" rm -f "$no_main_cluster"' EXIT
fi

say "installing the Debian packages ${missing[*]}"
if [ -n "$(unknown)" ] || ! install_missing 2>/dev/null; then
    quietly "${sudo[@]}" apt-get -qq update
    absent=$(unknown)
    [ -z "$absent" ] || die "this release of Debian has no package ${absent% }"
    install_missing
fi

# The tests of the pooler start a pgbouncer of their own.
if [[ " ${missing[*]} " == *" pgbouncer "* ]] && command -v systemctl >/dev/null; then
    "${sudo[@]}" systemctl disable --now pgbouncer >/dev/null 2>&1 || true
fi
