#!/usr/bin/env bash
# debian.sh: makes Debian's source package of the last commit in target/dist, of the archive that dist.sh makes and of
# debian/. Prints the path of its .dsc.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

archive=$("$root/scripts/dist.sh")
dist=${archive%/*}
name=$(basename "$archive" .tar.gz)
SOURCE_DATE_EPOCH=$(source_epoch)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What is Debian's is no part of what Debian calls the original.
gzip -dc "$archive" | tar --delete -f - "$name/debian" | gzip -9n >"$work/${name/-/_}.orig.tar.gz"
tar -C "$work" -xf "$archive"
(cd "$work" && quietly dpkg-source --build "$name")
mv "$work"/*.orig.tar.gz "$work"/*.debian.tar.* "$work"/*.dsc "$dist/"
write_sums
ls "$dist/${name/-/_}"-*.dsc
