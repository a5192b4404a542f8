#!/usr/bin/env bash
# package.sh deb|rpm|tar PG_CONFIG PACKAGE: packs the files that build.sh left in PACKAGE for that server, with
# documentation, into target/dist. Prints the path. The same sources, compiler and server give the same bytes. A package
# restarts no server and upgrades none. What it says, it takes from Cargo.toml and from debian/.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

form=$1 package=$3
version=$(server_version "$2")
pkglibdir=$("$2" --pkglibdir)
cd "$root"
release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The changelog begins with "idempotence (1.2.0-1) …".
revision=$(sed -n '1s/^idempotence (\(.*\)).*/\1/p' debian/changelog)
[ "${revision%-*}" = "$release" ] || die "debian/changelog is of $revision, and Cargo.toml of $release"
revision=${revision##*-}
case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) arch=$(uname -m) ;;
esac
SOURCE_DATE_EPOCH=$(source_epoch)
export SOURCE_DATE_EPOCH

# The library may need functions that earlier minor releases of the server lack.
minimum=$(server_release "$2")
is_sorted "${fixed_releases[$version]}" "$minimum" ||
    say "this package is built for PostgreSQL $minimum. Release packages are built for ${fixed_releases[$version]} or" \
        "later: see SECURITY.md, CVE-2026-6460"

case $form:$pkglibdir in
    rpm:/usr/pgsql-*) ;;
    rpm:*) say "this rpm is for a server with its files in $pkglibdir. Those for servers of PGDG are made on such a machine" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=$work/files
mkdir "$files"
cp -r "$package/." "$files/"
library=$files$pkglibdir/idempotence.so

case $form in
    deb) name=postgresql-$version-idempotence file=${name}_$release-${revision}_$arch.deb ;;
    rpm) name=idempotence_$version file=$name-$release-$revision.$(uname -m).rpm ;;
    tar) name=idempotence_$version file=$name-$release.$(uname -m).tar.gz ;;
esac
doc=$files/usr/share/doc/$name
mkdir -p "$doc/examples"
cp -r README.md SECURITY.md docs "$doc/"
[ ! -e THIRD-PARTY ] || cp THIRD-PARTY "$doc/"
cp -r monitoring "$doc/examples/"
case $form in
    deb)
        cp debian/copyright "$doc/"
        gzip -9nc debian/changelog >"$doc/changelog.Debian.gz"
        gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
        mkdir -p "$files/usr/share/lintian/overrides"
        cp debian/lintian-overrides "$files/usr/share/lintian/overrides/$name"
        ;;
    rpm)
        cp CHANGELOG.md "$doc/"
        mkdir -p "$files/usr/share/licenses/$name"
        cp LICENSE debian/copyright "$files/usr/share/licenses/$name/"
        ;;
    tar) cp LICENSE debian/copyright CHANGELOG.md "$doc/" ;;
esac
chmod -R u=rwX,go=rX "$files"
mode=755
[ "$form" != deb ] || mode=644 # as each of the two wants it
chmod "$mode" "$library"
find "$files" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mapfile -t paths < <(cd "$files" && find . -type f -printf '%P\n' | LC_ALL=C sort)

dist=$root/target/dist
mkdir -p "$dist"
rm -f "$dist/$file"
if [ "$form" = tar ]; then
    # No directories: they would give their modes to / and to /usr.
    tar -C "$files" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "${paths[@]}" | gzip -9n >"$dist/$file"
    write_sums
    echo "$dist/$file"
    exit
fi

# Prints what the server and the library need, one a line, in the words of this form.
needs() {
    if [ "$form" = rpm ]; then
        echo "postgresql$version-server >= $minimum"
        objdump -p "$library" | awk '
            $1 == "required" { sub(":", "", $3); from = $3 }
            $1 ~ /^0x/ && from { print from "(" $4 ")(64bit)" }'
    else
        echo "postgresql-$version (>= $minimum)"
        mkdir "$work/debian"
        echo 'Source: idempotence' >"$work/debian/control"
        (cd "$work" && quietly dpkg-shlibdeps -Tlibraries "$library")
        sed 's/^shlibs:Depends=//; s/, /\n/g' "$work/libraries"
    fi
}

# Prints the description that control has, as a block of YAML.
description() {
    sed -n '/^Description: /,$p' debian/control.in |
        sed -e 's/^Description: //' -e 's/^ \.$//' -e 's/^ //' -e 's/^/  /'
}

sed -e "s/PGVERSION/$version/" -e '/#DEBHELPER#/d' debian/postinst.in >"$work/postinst"
needs >"$work/needs"
summary=$(sed -n 's/^Description: //p' debian/control.in)
cat >"$work/changelog.yaml" <<YAML
- semver: $release-$revision
  date: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
  packager: $(sed -n 's/^Maintainer: //p' debian/control.in)
  changes:
    - note: $(sed -n 's/^  \* //p' debian/changelog | head -n 1)
YAML
{
    cat <<YAML
name: $name
arch: $arch
version: $release
release: $revision
section: database
priority: optional
maintainer: $(sed -n 's/^Maintainer: //p' debian/control.in)
license: PostgreSQL
mtime: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
description: |
$(description)
$([ "$form" = deb ] || echo "changelog: $work/changelog.yaml")
scripts:
  postinstall: $work/postinst
deb:
  compression: xz
rpm:
  summary: ${summary^}
  group: Applications/Databases
  buildhost: localhost
depends:
$(sed 's/.*/  - "&"/' "$work/needs")
contents:
YAML
    for path in "${paths[@]}"; do
        printf '  - { src: "%s", dst: "/%s"' "$files/$path" "$path"
        case $form/$path in
            rpm/usr/share/licenses/*) printf ', type: license' ;;
            rpm/usr/share/doc/*) printf ', type: doc' ;;
        esac
        echo ' }'
    done
    # What rpm makes for our files and does not own, it leaves behind. dpkg takes such directories away by itself.
    if [ "$form" = rpm ]; then
        (cd "$files" && find usr/share/*/"$name" -type d) | LC_ALL=C sort |
            sed 's/.*/  - { dst: "\/&", type: dir, file_info: { mode: 0755 } }/'
    fi
} >"$work/nfpm.yaml"
quietly "$(scripts/nfpm.sh)" package --config "$work/nfpm.yaml" --packager "$form" --target "$dist/$file"
write_sums
echo "$dist/$file"
