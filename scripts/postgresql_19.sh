#!/usr/bin/env bash
# postgresql_19.sh COMMAND...: runs a command in a directory tree that has PostgreSQL 19, and in it a copy of this
# checkout as the working directory. Debian has version 19 as binary packages in its release experimental only, and they
# need a newer C library than Debian 12 has. So the tree is an unpacked Debian sid with these packages and what builds and
# tests the extension; `chroot` enters it. It is made once on a machine, in the cache, in about four minutes (2.5 GB).
# Only root can. Exits with 3 where the packages cannot be installed.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/debian_source.sh
. "$root/scripts/debian_source.sh"

tree=$cache/postgresql-19
unavailable() {
    say "PostgreSQL 19 is not available here: $1"
    exit 3
}
[ "$(id -u)" -eq 0 ] || unavailable "only root can make and enter a Debian tree"

# The tree's packages: the server, what builds the extension, and what its tests need.
packages=(postgresql-19 postgresql-server-dev-19 ca-certificates gcc libc6-dev make clang libclang-dev rustc cargo
    python3-venv nodejs npm git procps diffutils)

make_tree() {
    local work uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    "$root/scripts/packages.sh" mmdebstrap
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # expanded now, since it is local
    trap "rm -rf '$work' '$tree.new'" EXIT
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    uri=$(mirror)
    [ -n "$uri" ] || unavailable "this machine's apt sources name no Debian mirror"
    printf 'Package: *\nPin: release a=experimental\nPin-Priority: 1\n\n' >"$work/preferences"
    printf 'Package: postgresql*-19 libpq5 libpq-dev\nPin: release a=experimental\nPin-Priority: 990\n' >>"$work/preferences"
    for suite in sid experimental; do
        echo "deb [signed-by=$keyring] $uri $suite main" >>"$work/sources.list"
    done
    rm -rf "$tree.new"
    say "making a Debian tree with PostgreSQL 19 in $tree (about four minutes, once)"
    quietly mmdebstrap --mode=root --variant=minbase --include="$(IFS=, && echo "${packages[*]}")" \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --setup-hook="mkdir -p \"\$1/etc/apt/preferences.d\" && cp '$work/preferences' \"\$1/etc/apt/preferences.d/postgresql-19\"" \
        sid "$tree.new" "$work/sources.list" || return
    mv "$tree.new" "$tree"
    rm -rf "$work"
    trap - EXIT
}

if [ ! -d "$tree" ]; then
    mkdir -p "$cache"
    chmod 755 "$cache"
fi
exec 9>"$tree.lock"
flock 9
[ -d "$tree" ] || make_tree || unavailable "Debian's packages could not be installed"

# The registries are reached as from this machine.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/npmrc /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp -L "$file" "$tree$file"
done
mkdir -p "$tree/cargo"

# A tree that was made when the list of packages was shorter lacks the others. Their versions are those of its day,
# unless the mirror has them no more.
lacks_packages() {
    local installed
    # shellcheck disable=SC2016 # dpkg-query expands it
    installed=$(chroot "$tree" dpkg-query --show --showformat='${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
        grep -cx installed) || true
    [ "$installed" -ne ${#packages[@]} ]
}
install_lacking() {
    chroot "$tree" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${packages[@]}"
}
if lacks_packages; then
    say "installing the packages that $tree lacks"
    quietly install_lacking || { quietly chroot "$tree" apt-get -qq update && quietly install_lacking; } ||
        unavailable "Debian's packages could not be installed"
fi

# Build products of the copy stay in the tree, so that the next build is short.
copy=$tree/home/idempotence
mkdir -p "$copy"
find "$copy" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf '{}' +
tar -C "$root" --exclude=./target --exclude=./.git --exclude=node_modules -cf - . | tar -C "$copy" --no-same-owner -xf -
# In mount and process namespaces of its own: whatever the command starts and mounts ends with it. Debian's cargo comes
# without rustfmt, which pgrx would call.
# shellcheck disable=SC2016 # the inner shell expands these
exec unshare --mount --pid --fork --kill-child bash -c '
    mount -t proc proc "$0/proc"
    mount --rbind /dev "$0/dev"
    cd /
    exec chroot "$0" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/cargo RUSTFMT=true \
        PG_CONFIG=/usr/lib/postgresql/19/bin/pg_config \
        bash -c "cd /home/idempotence && exec \"\$@\"" bash "$@"' "$tree" "$@"
