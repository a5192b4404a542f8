#!/usr/bin/env bash
# cargo_tool.sh CRATE VERSION PROFILE: makes sure that there is this version of a tool that cargo builds. Takes the one on
# PATH if it has that version, else builds one into the cache, once on a machine, in that profile of cargo.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

crate=$1 version=$2 profile=$3
is_there() {
    local found
    case $crate in
        cargo-*) found=$(cargo "${crate#cargo-}" --version 2>/dev/null) ;;
        *) found=$("$crate" --version 2>/dev/null) ;;
    esac
    [ "${found##* }" = "$version" ]
}

command -v cargo >/dev/null || die "there is no cargo: install Rust with rustup"
is_there && exit

mkdir -p "$cache"
chmod 755 "$cache"
exec 9>"$cache/$crate.lock"
flock 9
is_there && exit
say "building $crate $version into $tools (some minutes, once)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CARGO_PROFILE_DEV_DEBUG=0 quietly cargo install "$crate" --version "$version" --locked --profile "$profile" --root "$tools" \
    --target-dir "$work"
