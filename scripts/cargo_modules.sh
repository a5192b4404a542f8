#!/usr/bin/env bash
# Makes sure that the lints have the cargo-modules that they need. Takes the one on PATH if it has this version,
# else builds one into target/tools. Later versions need a newer compiler.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=0.27.0
[ "$(cargo-modules --version 2>/dev/null)" = "cargo-modules $version" ] && exit

say "building cargo-modules $version into target/tools (some minutes, once)"
quietly cargo install cargo-modules --version "$version" --locked --root "$root/target/tools" \
    --target-dir "$root/target/tools/build"
rm -rf "$root/target/tools/build"
