#!/usr/bin/env bash
# root.sh PACKAGE...: prints a directory that has a fresh Debian 12 with these packages, as a machine of its own would
# have them. It is made once on a machine, from the mirrors that the machine itself uses. Only root can.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/debian_source.sh
. "$(dirname "$0")/debian_source.sh"

suite=bookworm
[ "$(id -u)" -eq 0 ] || die "only root can make a Debian of its own"
dir=$cache/root-$(cksum <<<"$suite $*" | cut -d' ' -f1)
if [ ! -d "$dir" ]; then
    mkdir -p "$cache"
    chmod 755 "$cache"
    exec 9>"$dir.lock"
    flock 9
fi
if [ ! -d "$dir" ]; then
    "$root/scripts/packages.sh" mmdebstrap
    say "making a Debian with $* in $dir (a minute or two, once)"
    work=$(mktemp -d)
    trap 'rm -rf "$work" "$dir.new"' EXIT
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    private_apt update || true
    # shellcheck disable=SC2016 # apt-get expands these
    private_apt indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' \
        'Component: main' | sed -n "s/^\(deb [^ ]* ${suite}[^ ]* main\) Debian$/\1/p" >"$work/sources.list"
    [ -s "$work/sources.list" ] || die "this machine's apt sources name no mirror of Debian $suite"
    rm -rf "$dir.new"
    quietly mmdebstrap --mode=root --variant=minbase --include="$(IFS=, && echo "$*")" "$suite" "$dir.new" "$work/sources.list"
    mv "$dir.new" "$dir"
fi
echo "$dir"
