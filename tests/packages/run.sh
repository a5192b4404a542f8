#!/usr/bin/env bash
# run.sh PG_CONFIG: the packages for that server, as made from its build, which is made if it is not there: what lintian
# and rpmlint say of them, that the same build gives the same bytes, and the first minute with them, on a machine that has
# only Debian's PostgreSQL 15. With IDEM_LONG=1 also: that the archive of the sources builds without network, in another
# directory and another home, and gives the same bytes; and that Debian's source package builds and passes its tests, with
# Debian's own Rust. One line a test. Only root can make the machines.
# shellcheck disable=SC2317 # the functions are called through check
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"

# By its own path, as the suite builds for it, so that nothing is built again.
pg_config=$(own_pg_config "$1")
cd "$root"
here=$root/tests/packages
work=$(mktemp -d "$(private_dir)/packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
share=$work/share machine=$work/machine
mkdir "$share" "$machine"

failed=0
# check NAME COMMAND...: what it prints is shown where it fails, together with the tests that it has itself.
check() {
    local name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        grep '^ok ' "$work/said" || true
        echo "ok $name"
    else
        cat "$work/said"
        echo "not ok $name"
        failed=1
    fi
}

# on_machine DIRECTORY COMMAND...: runs a command on a machine that has at first what that directory has, without network
# and with processes of its own. The machine ends with the command. Its /mnt is $share.
on_machine() {
    # shellcheck disable=SC2016 # the inner shell expands these
    unshare --mount --pid --net --uts --ipc --fork --kill-child sh -ec '
        ip link set lo up
        lower=$1 machine=$2
        mount -t tmpfs tmpfs "$machine"
        mkdir "$machine/upper" "$machine/work" "$machine/root"
        mount -t overlay -o "lowerdir=$lower,upperdir=$machine/upper,workdir=$machine/work" overlay "$machine/root"
        machine=$machine/root
        mount -t proc proc "$machine/proc"
        mount -t tmpfs tmpfs "$machine/dev/shm"
        mount --bind "$3" "$machine/mnt"
        shift 3
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$machine" "$@"' \
        sh "$1" "$machine" "$share" "${@:2}"
}

packages() {
    make -s deb PG_CONFIG="$pg_config" && make -s rpm PG_CONFIG="$pg_config" && make -s package PG_CONFIG="$pg_config" &&
        cp target/dist/*"_$version"[-.]*"$(uname -m)".* target/dist/postgresql-"$version"-*.deb "$share/"
}

# The minor release that a package names as the oldest one it installs on is that of the server it was built for.
names_the_server() {
    local release
    release=$(server_release "$pg_config")
    on_machine "$linter" dpkg-deb --field /mnt/"$(cd "$share" && echo *.deb)" Depends |
        grep -F "postgresql-$version (>= $release)," &&
        on_machine "$linter" sh -c 'rpm -qp --requires /mnt/*.rpm' | grep -Fx "postgresql$version-server >= $release"
}

# dpkg refuses a package that was built for a later minor release. The package is the same build, packed for a pg_config
# that prints another release.
refused_by_an_earlier_server() {
    local later=$share/later said
    mkdir "$later"
    # shellcheck disable=SC2016 # the stub expands these
    printf '#!/bin/sh\n[ "$1" != --version ] || exec echo "PostgreSQL %s.99"\nexec "%s" "$@"\n' \
        "$version" "$pg_config" >"$later/pg_config"
    chmod 755 "$later/pg_config"
    make -s deb PG_CONFIG="$later/pg_config"
    mv target/dist/postgresql-"$version"-*.deb "$later/"
    cp "$share"/*.deb target/dist/
    write_sums
    ! said=$(on_machine "$server" sh -c 'dpkg -i /mnt/later/*.deb' 2>&1) &&
        grep -F "depends on postgresql-$version (>= $version.99)" <<<"$said"
}

# Of another user's umask, at another time, below another home.
again() (
    umask 077
    mkdir "$work/again"
    cp "$share"/*.deb "$share"/*.rpm "$share"/*.tar.gz "$work/again"
    HOME=$work TMPDIR=$work TZ=Pacific/Auckland packages &&
        for file in "$work"/again/*; do
            cmp "$file" "$share/${file##*/}" || return
        done
)

sums() { (cd target/dist && sha256sum --check SHA256SUMS); }

lints() {
    local said
    said=$(on_machine "$linter" sh -c "lintian --allow-root --fail-on error,warning $1") || { echo "$said" && return 1; }
    [ -z "$said" ] || { echo "$said" && return 1; }
}

rpm_lints() { on_machine "$linter" sh -c 'rpmlint --config /mnt/rpmlint.toml /mnt/*.rpm'; }

source_package() {
    scripts/debian.sh && cp target/dist/idempotence_*.{dsc,orig.tar.gz,debian.tar.*} "$share/"
}

first_minute() {
    cp "$here/first_minute.sh" README.md "$share/" &&
        on_machine "$server" sh -c "bash /mnt/first_minute.sh /mnt/*.$1 /mnt/README.md"
}

# The archive of the sources, in another directory, below another home, without network. Rust itself is not in it.
elsewhere() {
    local rustup=${RUSTUP_HOME:-$HOME/.rustup}
    mkdir "$work/home" && tar -C "$work" -xf "$(scripts/dist.sh)" &&
        unshare --net env -u CARGO_HOME RUSTUP_HOME="$rustup" HOME="$work/home" \
            make -C "$work"/idempotence-*/ -s deb PG_CONFIG="$pg_config" &&
        cmp "$share"/*.deb "$work"/idempotence-*/target/dist/*.deb
}

# As Debian's machines would build it, and then test what was built.
debian_build() {
    # shellcheck disable=SC2016 # the inner shell expands these
    on_machine "$builder" sh -ec '
        mkdir /build && cd /build && dpkg-source -x /mnt/*.dsc tree && cd tree
        dpkg-buildpackage -us -uc -b
        lintian --allow-root --fail-on error,warning ../*.changes
        autopkgtest --summary-file=/mnt/summary ../*.deb . -- null
        grep "^installcheck *PASS" /mnt/summary'
}

version=$(server_version "$pg_config")
check "packages for $version" packages
check 'the same build gives the same bytes' again
check 'digests' sums
if [ "$(id -u)" -ne 0 ]; then
    say 'only root can make machines for the rest'
    exit $failed
fi
command -v ip >/dev/null || scripts/packages.sh iproute2
linter=$(scripts/root.sh lintian rpm rpmlint)
cp "$here/rpmlint.toml" "$share/"
check 'lintian' lints '/mnt/*.deb'
check 'rpmlint' rpm_lints
check 'the minor release' names_the_server
if [ "$("$pg_config" --pkglibdir)" = /usr/lib/postgresql/15/lib ]; then
    server=$(scripts/root.sh postgresql-15 rpm)
    check 'an earlier minor release' refused_by_an_earlier_server
    check 'first minute, deb' first_minute deb
    check 'first minute, rpm' first_minute rpm
else
    say 'the first minute is for the package of Debian'\''s PostgreSQL 15'
fi
if [ -e .git ]; then
    check 'source package' source_package
    if [ -n "${IDEM_LONG:-}" ]; then
        check 'lintian, sources' lints '/mnt/*.dsc'
        check 'the same bytes elsewhere' elsewhere
        builder=$(scripts/root.sh autopkgtest build-essential cargo-web clang debhelper libclang-dev lintian \
            postgresql-15 postgresql-server-dev-all rustc-web)
        check 'built and tested as Debian does' debian_build
    fi
else
    say 'the archive of the sources is made from a checkout of git'
fi
exit $failed
