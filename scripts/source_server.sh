#!/usr/bin/env bash
# source_server.sh VERSION: builds that version of PostgreSQL with assertions from Debian's source
# package, once a machine, and prints the path of its pg_config. Assertions find what a release
# build forgives: leaked snapshots, buffers and relation references, wrong lock levels.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$1
package=postgresql-$version
# The releases of Debian that have the package, the one that keeps it for longest first.
case $version in
    17) suites=(trixie) ;;
    18) suites=(forky sid) ;;
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

# apt-get with a state of its own: the machine's apt stays as it is, and nobody need be root. A
# mirror that stands still serves too, for what it has is signed all the same.
private_apt() {
    apt-get -qq -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User= -o Acquire::Check-Valid-Until=false "$@"
}

# The Debian mirror that this machine uses, as its own apt sources tell.
mirror() {
    private_apt update || true
    # shellcheck disable=SC2016 # apt-get expands these
    private_apt indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' \
        'Created-By: Packages' 'Component: main' |
        awk '$1 == "Debian" && $2 !~ /-security/ && !uri { uri = $3 }
             END { sub("/$", "", uri); print uri }'
}

# Leaves the source package in $work. The first suite that has it serves.
fetch() {
    local uri suite sources
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    uri=$(mirror)
    [ -n "$uri" ] || die "this machine's apt sources name no Debian mirror for PostgreSQL $version"
    sources=(-o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=-)
    for suite in "${suites[@]}"; do
        echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" \
            >"$work/sources.list"
        if private_apt "${sources[@]}" update &&
            (cd "$work" && private_apt "${sources[@]}" source --download-only "$package"); then
            return
        fi
    done
    die "none of ${suites[*]} at $uri gave the source package $package." \
        "A server that is there already can be named: PG${version}_CONFIG=..."
}

# Installed into a staging directory first, so that no half-installed server is ever found.
build() {
    cd "$work"
    mkdir src
    tar -xf "${package}"_*.orig.tar.* -C src --strip-components=1
    cd src
    quietly ./configure --prefix="$prefix" --enable-cassert --enable-debug \
        --without-icu --without-readline
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
    fetch >&2
    build >&2
fi
echo "$prefix/bin/pg_config"
