#!/usr/bin/env bash
# schema.sh [--check] PG_CONFIG: writes the script of CREATE EXTENSION, sql/idempotence--VERSION.sql, from
# what the macros of pgrx leave in the library. With --check, fails where the script in the tree is another.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

check=''
[ "$1" != --check ] || { check=yes && shift; }
server_version "$1" >/dev/null
pg_config=$(own_pg_config "$1")
cd "$root"
release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
script=sql/idempotence--$release.sql
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
generated=$work/script

[ -e "$script" ] || touch "$script"
quietly make -s PG_CONFIG="$pg_config" PROFILE=dev
library=$("$pg_config" --pkglibdir)
objcopy --dump-section .pgrxsc="$work/section" "$root/target/package/dev${library//\//-}$library/idempotence.so" "$work/library"
choose_rust
quietly cargo run "${rust_options[@]}" --locked --quiet -p idempotence-schema -- idempotence.control "$release" "$work/section" "$generated"
# The lines of the sources change too often to be told. The schema is made by sql/tables.sql, unless it was there before;
# pgrx's statement would fail then.
sed -i -e '/^-- src\/.*:[0-9]*$/d' -e '/^CREATE SCHEMA IF NOT EXISTS idempotence;/d' "$generated"
# Views and grants name functions, and come after all of them.
for name in begin run views sweep holders segments unfinished checks health grants comments; do
    printf '/* <begin connected objects> */\n%s\n/* </end connected objects> */\n\n' "$(<"sql/$name.sql")" >>"$generated"
done
# pgrx chooses any order that has what a statement needs before it, another one each time. So the statements are compared,
# and the order of the script in the tree stays. Each line has one part of the script.
parts() { awk 'BEGIN { RS = "/\\* <begin connected objects> \\*/" } { gsub(/\n/, "\\n"); print }' "$1" | LC_ALL=C sort; }
if diff <(parts "$script") <(parts "$generated") >"$work/differences"; then
    exit
elif [ -n "$check" ]; then
    sed 's/\\n/\n  /g' "$work/differences"
    die "$script is not what the sources make: scripts/schema.sh $1"
fi
cp "$generated" "$script"
