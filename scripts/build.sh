#!/usr/bin/env bash
# build.sh PG_CONFIG PROFILE PACKAGE: builds the extension for the server that PG_CONFIG belongs to, and leaves in the
# directory PACKAGE the files to be installed, laid out as below /. Needs cargo, clang (for the server's headers) and
# PG_CONFIG, and nothing else.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(server_version "$1")
pg_config=$(own_pg_config "$1")
profile=$2 package=$3
cd "$root"

# Debian 12 brings a newer Rust for its browsers (rustc-web) than rustup may have.
if debian_rust=$(/usr/bin/rustc --version 2>/dev/null | cut -d' ' -f2) && [ -n "$debian_rust" ] &&
    is_sorted "$rust_stated" "$debian_rust" && ! is_sorted "$rust_stated" "$(rustc --version | cut -d' ' -f2)"; then
    export RUSTC=/usr/bin/rustc
    rust_options=()
else
    choose_rust
fi
[ -n "${LIBCLANG_PATH:-}" ] || command -v clang >/dev/null || die "there is no clang, which reads the server's headers"
headers=$("$pg_config" --includedir-server)
[ -e "$headers/postgres.h" ] || die "there are no headers of the server in $headers. Install the development package of" \
    "PostgreSQL $version (Debian: postgresql-server-dev-$version)"

export PGRX_PG_CONFIG_PATH=$pg_config
options=("${rust_options[@]}" --locked --lib -p idempotence --no-default-features --features "pg$version" --profile "$profile")
if [ "$profile" = dev ]; then
    # Beside lints and tests, with the same flags: of 140 crates, cargo compiles those four anew that depend on the version.
    # The library there is that of the last build, so one build at a time.
    export CARGO_TARGET_DIR=$root/target
    mkdir -p "$CARGO_TARGET_DIR"
    exec 9<"$CARGO_TARGET_DIR"
    flock 9
else
    # By itself: cargo would build the extension anew at each change from one version to another.
    export CARGO_TARGET_DIR=$root/target/pg$version
    # pgrx would format what it makes of the headers, and fail where Rust came without rustfmt.
    export RUSTFMT=true
    # No path of this machine goes into the library, so that every directory and every home gives the same bytes. The last
    # prefix that fits counts. Cargo's directory of sources is there only after it has fetched them.
    [ -d vendor ] || cargo fetch --locked --quiet --target "$(rustc -vV | sed -n 's/^host: //p')"
    remaps="'--remap-path-prefix=$root=/idempotence'"
    export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$root=/idempotence"
    for crates in "$root/vendor" "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
        remaps+=", '--remap-path-prefix=$crates=/crates'"
    done
    options+=(--config "build.rustflags = [$remaps]")
fi
cargo build "${options[@]}"

rm -rf "$package"
extension=$package$("$pg_config" --sharedir)/extension
library=$package$("$pg_config" --pkglibdir)
mkdir -p "$extension" "$library"
cp "$CARGO_TARGET_DIR/${profile/#dev/debug}/libidempotence.so" "$library/idempotence.so"
release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
sed "s/@CARGO_VERSION@/$release/" idempotence.control >"$extension/idempotence.control"
cp "sql/idempotence--$release.sql" "$extension/"
