#!/usr/bin/env bash
# schema.sh [--check] PG_CONFIG: writes the script of CREATE EXTENSION, sql/idempotence--VERSION.sql, as cargo-pgrx
# generates it from the sources. With --check, fails where the script in the tree is another.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

check=''
[ "$1" != --check ] || { check=yes && shift; }
version=$(server_version "$1")
pg_config=$(own_pg_config "$1")
cd "$root"
script=sql/idempotence--$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml).sql
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
generated=$work/script
# cargo-pgrx asks for the server where it notes its own.
printf '[configs]\npg%s = "%s"\n' "$version" "$pg_config" >"$work/config.toml"

scripts/cargo_pgrx.sh
[ -e "$script" ] || touch "$script"
quietly make -s PG_CONFIG="$pg_config" PROFILE=dev
# It reads what the library tells of itself, so that nothing is compiled again.
PGRX_HOME=$work CARGO_TARGET_DIR=$root/target/pg$version quietly cargo pgrx schema --skip-build --profile dev --pg-config "$pg_config" \
    --no-default-features --features "pg$version" --out "$generated"
# The lines of the sources change too often to be told.
sed -i '/^-- src\/.*:[0-9]*$/d' "$generated"
if [ -n "$check" ]; then
    diff "$script" "$generated" || die "$script is not what the sources make: scripts/schema.sh $1"
else
    cp "$generated" "$script"
fi
