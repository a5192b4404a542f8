#!/usr/bin/env bash
# install_files.sh PACKAGE [DESTDIR]: installs the files that build.sh left in PACKAGE into /, or below DESTDIR.
# Where rights are missing, it installs none of them.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

package=$1 destdir=${2:-}
[[ -z $destdir || $destdir = /* ]] || destdir=$PWD/$destdir

cd "$package"
mapfile -t files < <(find . -type f -printf '%P\n')
[ ${#files[@]} -gt 0 ] || die "there is nothing to install in $package"

for file in "${files[@]}"; do
    # The last directory on the way to the file that is there already.
    directory=$(dirname "$destdir/$file")
    while [ ! -e "$directory" ]; do
        directory=$(dirname "$directory")
    done
    [ -d "$directory" ] || die "cannot install below $directory, for it is no directory"
    [ -w "$directory" ] || die "cannot write to $directory. Become root (sudo make install), or" \
        "install below another directory (make install DESTDIR=...)"
done

for file in "${files[@]}"; do
    mode=644
    [[ $file != *.so ]] || mode=755
    # A new file takes the place of the old one. To write into the old one could crash a server that has loaded it.
    said=$(install -D -m "$mode" "$file" "$destdir/$file" 2>&1) ||
        die "cannot install $destdir/$file: ${said#install: }"
done
