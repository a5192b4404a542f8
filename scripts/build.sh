#!/usr/bin/env bash
# build.sh PG_CONFIG PROFILE PACKAGE: builds the extension for the server that PG_CONFIG belongs
# to, and leaves in the directory PACKAGE the files to be installed, laid out as below /.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(server_version "$1")
pg_config=$(command -v "$1")
profile=$2 package=$3
"$root/scripts/cargo_pgrx.sh"
cd "$root"

# cargo-pgrx asks cargo for the metadata first, without --locked. If Cargo.lock does not fit, cargo then
# updates it in silence. So it is checked here before that.
quietly cargo metadata --locked --format-version 1 ||
    die "Cargo.lock does not fit Cargo.toml, and is left as it is. To renew it: cargo update --workspace"

# One target directory for each major version. In a common one, cargo would build the extension anew at
# each change from one version to another.
export PGRX_PG_CONFIG_PATH=$pg_config CARGO_TARGET_DIR=$root/target/pg$version

rm -rf "$package"
export PGRX_BUILD_FLAGS=--locked
cargo pgrx package --pg-config "$pg_config" --profile "$profile" --out-dir "$package"
