#!/usr/bin/env bash
# unpacked.sh PACKAGE...: unpacks programs of Debian into a directory of the cache, with what they need and this machine
# has not, and prints that directory. Nothing is installed, so nobody need be root, and nothing that is installed is
# upgraded. They are unpacked once on a machine.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/debian_source.sh
. "$(dirname "$0")/debian_source.sh"

directory=$cache/unpacked-$(printf '%s-' "$@" | sed 's/-$//')
if [ ! -d "$directory" ]; then
    command -v apt-get >/dev/null || die "this is no Debian: install $*"
    mkdir -p "$cache"
    chmod 755 "$cache"
    exec 9>"$directory.lock"
    flock 9
fi
if [ ! -d "$directory" ]; then
    say "unpacking the Debian packages $* into $directory (once)"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/unpacked"
    quietly private_apt update
    # What is installed already, though perhaps in an older version, is left out.
    plan=$(LC_ALL=C private_apt -s --no-install-recommends -o quiet=1 install "$@") || die "apt-get knows no way to $*"
    mapfile -t wanted < <(sed -nE 's/^Inst ([^ ]+) \(.*/\1/p' <<<"$plan" && printf '%s\n' "$@")
    (cd "$work/debs" && quietly private_apt download "${wanted[@]}")
    for deb in "$work"/debs/*.deb; do
        dpkg-deb --extract "$deb" "$work/unpacked"
    done
    chmod 755 "$work/unpacked"
    mv "$work/unpacked" "$directory"
fi
echo "$directory"
