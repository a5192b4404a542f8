#!/usr/bin/env bash
# dist.sh: makes target/dist/idempotence-VERSION.tar.gz from the last commit: the sources with all crates that a build on
# Linux takes, so that it needs no network. The same commit gives the same bytes.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
name=idempotence-$release
[ -e .git ] || die "make dist archives a commit, and this is no checkout of git"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/$name
git archive --prefix="$name/" HEAD | tar -C "$work" -xf -
cd "$tree"

say "fetching the crates"
mkdir .cargo
quietly cargo vendor --locked --versioned-dirs
cat >.cargo/config.toml <<'TOML'
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"
TOML

# What only other systems take is most of the bytes. Of such a crate stays what cargo reads to resolve versions.
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
    cargo tree --locked --offline --workspace --all-features --target "$target" --prefix none --format '{p}'
done | sed -n 's/^\([^ ]*\) v\([^ ]*\).*/\1-\2/p' | sort -u >"$work/needed"
for crate in $(basename -a vendor/* | grep -vxFf "$work/needed"); do
    find "vendor/$crate" -type f ! -name Cargo.toml ! -name .cargo-checksum.json -delete
    find "vendor/$crate" -type d -empty -delete
    mkdir "vendor/$crate/src"
    : >"vendor/$crate/src/lib.rs"
    sed -i 's/"files":{[^}]*}/"files":{}/' "vendor/$crate/.cargo-checksum.json"
done
cargo metadata --locked --offline --format-version 1 >/dev/null

dist=$root/target/dist
mkdir -p "$dist"
chmod -R u=rwX,go=rX .
tar -C "$work" --sort=name --mtime="@$(source_epoch)" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" |
    gzip -9n >"$dist/$name.tar.gz"
write_sums
echo "$dist/$name.tar.gz"
