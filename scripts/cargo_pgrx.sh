#!/usr/bin/env bash
# Makes sure that there is the cargo-pgrx that goes with the pgrx in Cargo.toml. Takes the one on PATH
# if it has that version, else builds one into target/tools.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

command -v cargo >/dev/null || die "there is no cargo: install Rust with rustup"

version=$(sed -n 's/^pgrx = .*"=\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
[ "$(cargo-pgrx pgrx --version 2>/dev/null)" = "cargo-pgrx $version" ] && exit

say "building cargo-pgrx $version into target/tools (a few minutes, once)"
quietly cargo install cargo-pgrx --version "$version" --locked --root "$root/target/tools" \
    --target-dir "$root/target/tools/build"
rm -rf "$root/target/tools/build"
