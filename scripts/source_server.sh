#!/usr/bin/env bash
# source_server.sh VERSION: builds that major version of PostgreSQL, with assertions, from Debian's source package,
# and prints the path of its pg_config. It is built once on a machine. Assertions find what a release build
# forgives: leaked snapshots, buffers and relation references, wrong lock levels.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/debian_source.sh
. "$(dirname "$0")/debian_source.sh"

version=$1
package=postgresql-$version
# The releases of Debian that have the package. The release that will keep it for longest comes first. And a version
# that was in one of them, with the digest that Debian has signed for it.
case $version in
    17)
        suites=(trixie)
        known=(17.11 dd27f2b3c59e73ed14aa3324901242bf69a032a6347805f274e6260322d42979)
        ;;
    18)
        suites=(forky sid)
        known=(18.6 555610c24d53e4316da5b7d3fc25c279d96856d5e0e23ee308c328c5fa881d9f)
        ;;
    *) die "no release of Debian is known here that has the source package $package" ;;
esac

prefix=$cache/pg$version-cassert
if [ -x "$prefix/bin/pg_config" ]; then
    echo "$prefix/bin/pg_config"
    exit
fi

mkdir -p "$cache"
chmod 755 "$cache"
exec 9>"$cache/pg$version.lock"
flock 9

# Installs into a staging directory first, so that no half-installed server is ever found.
build() {
    cd "$work"
    mkdir src
    tar -xf "${package}"_*.orig.tar.* -C src --strip-components=1
    cd src
    # An assertion names its line itself. Without debugging information and with fewer optimizations, the build takes half
    # as long, and the tests hardly longer.
    quietly ./configure --prefix="$prefix" --enable-cassert --without-icu --without-readline CFLAGS=-O1
    quietly make -s -j"$(nproc)"
    quietly make -s -j"$(nproc)" -C contrib
    quietly make -s install DESTDIR="$work/staging"
    quietly make -s -C contrib install DESTDIR="$work/staging"
    quietly make -s -C src/test/isolation install DESTDIR="$work/staging"
    mv "$work/staging$prefix" "$prefix"
}

if [ ! -x "$prefix/bin/pg_config" ]; then
    say "building PostgreSQL $version with assertions into $prefix (a few minutes, once)"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch_source "$package" "${suites[@]}" >&2 || fetch_known_source "$package" "${known[@]}" >&2 ||
        die "A server that is there already can be named: PG${version}_CONFIG=..."
    build >&2
fi
echo "$prefix/bin/pg_config"
