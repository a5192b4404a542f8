#!/usr/bin/env bash
# build.sh PG_CONFIG PROFILE PACKAGE: builds the extension for the server that PG_CONFIG belongs
# to, and leaves in the directory PACKAGE what is to be installed, laid out as below /.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

pg_config=$(command -v "$1") || die "there is no $1. Install the development package of your" \
    "PostgreSQL server, or name its pg_config: make PG_CONFIG=..."
profile=$2 package=$3
"$root/scripts/cargo_pgrx.sh"

# One target directory a major version: in a common one, cargo would build the extension anew at
# each change from one version to another.
export PGRX_PG_CONFIG_PATH=$pg_config CARGO_TARGET_DIR
CARGO_TARGET_DIR=$root/target/pg$(server_version "$pg_config")

cd "$root"
rm -rf "$package"
cargo pgrx package --pg-config "$pg_config" --profile "$profile" --out-dir "$package"
