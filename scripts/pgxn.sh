#!/usr/bin/env bash
# pgxn.sh: makes the archive for PGXN of the last commit, target/dist/idempotence-VERSION.zip, and prints its path.
# META.json is looked at by PGXN's own tool first.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
git rev-parse --verify --quiet HEAD >/dev/null || die "the archive is made of a commit, and this is no checkout of git"
[ -z "$(git status --porcelain)" ] || say "what is not committed is not in the archive"
scripts/check_meta.py
scripts/cargo_tool.sh pgxn_meta 0.7.0 dev
quietly pgxn_meta META.json

release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
archive=target/dist/idempotence-$release.zip
mkdir -p target/dist
git archive --format=zip --prefix="idempotence-$release/" --output="$archive" HEAD
write_sums
echo "$archive"
