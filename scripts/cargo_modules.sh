#!/usr/bin/env bash
# Makes sure that there is the cargo-modules that the lints use: the one on PATH if it is of this version,
# else one built into target/tools. Later ones need a newer compiler.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=0.27.0
[ "$(cargo-modules --version 2>/dev/null)" = "cargo-modules $version" ] && exit

say "building cargo-modules $version into target/tools (some minutes, once)"
quietly cargo install cargo-modules --version "$version" --locked --root "$root/target/tools" \
    --target-dir "$root/target/tools/build"
rm -rf "$root/target/tools/build"
