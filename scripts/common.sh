# Sourced by the other scripts: where things are, and functions for messages.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
umask 022
# The flags of a make that runs this script are not meant for a make that it calls.
unset MAKEFLAGS MAKELEVEL

# The cache has what is built once on a machine, outside of the checkout. For root it must be a place that
# the postgres user can reach, and root's home is no such place.
if [ "$(id -u)" -eq 0 ]; then
    cache=${IDEMPOTENCE_CACHE:-/var/cache/idempotence}
else
    cache=${IDEMPOTENCE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/idempotence}
fi

# Where the tools are that cargo calls.
tools=$cache/tools
export PATH="$tools/bin:$PATH"

# The server that is used if none is named: Debian's.
pg15_config=${PG15_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}

# The major versions that the extension is for. The suite tests all of them.
test_versions=(15 16 17 18)

# Debian's packages of what stands around servers, which the suites failover and splitting need.
fleet_packages=(patroni etcd-server haproxy pgpool2)

# What the clients for Java and Go need besides a JDK. It is unpacked, since its installation would upgrade others.
agent_packages=(libpostgresql-jdbc-java libhikaricp-java libslf4j-java golang-go golang-github-jackc-pgx-v4-dev)

# The Rust that the extension states (rust-version), and the oldest one that compiles it. They differ because pgrx states a
# newer version than its code needs. Other crates of this workspace do not contain pgrx.
rust_stated=$(sed -n '/^\[package\]/,/^$/s/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
rust_oldest=1.95

# Sets rust_options to what cargo needs to compile the extension with the Rust on PATH: nothing, or, where that Rust is
# older than the one stated, the flag that ignores it.
choose_rust() {
    local found
    rust_options=()
    command -v cargo >/dev/null || die "there is no cargo: install Rust $rust_stated or later, for example with rustup"
    found=$(rustc --version | cut -d' ' -f2)
    ! is_sorted "$rust_stated" "$found" || return 0
    is_sorted "$rust_oldest" "$found" ||
        die "Rust is $found here, and the extension needs $rust_stated or later: rustup update"
    say "Rust is $found here, and the extension states $rust_stated; it is compiled with --ignore-rust-version"
    rust_options=(--ignore-rust-version)
}

# is_sorted VERSION VERSION: whether the first version is not newer than the second.
is_sorted() { [ "$(printf '%s\n' "$@" | sort -V | head -n 1)" = "$1" ]; }

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Runs a long command silently, but for a line each half minute. Shows the end of its output only if it fails.
quietly() {
    local log rc=0
    log=$(mktemp)
    # What tells the progress comes first, for it writes where this function writes, and not into the log.
    # shellcheck disable=SC2094 # the log is read while it is written
    "$@" 8> >(tell_progress "$log") >"$log" 2>&1 || rc=$?
    if [ "$rc" -ne 0 ]; then
        tail -n 100 "$log" >&2
        printf 'error: failed (%s): %s\n' "$rc" "$*" >&2
    fi
    rm -f "$log"
    return "$rc"
}

# Says each half minute how far the log is, until standard input ends or the log is gone.
tell_progress() {
    local status=142 line
    while [ "$status" -gt 128 ]; do
        status=0
        read -rt 30 || status=$?
        # The log goes when the command ends, at any moment.
        line=$(tail -n 1 "$1" 2>/dev/null | sed 's/^ *//' | cut -c 1-100) || true
        [ -e "$1" ] || return 0
        [ "$status" -le 128 ] || say "... ${line:-at work}"
    done
}

# PostgreSQL refuses to run as root. If we are root, its programs run as the postgres user, from a directory
# that this user can certainly enter.
as_server_user() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && runuser -u postgres -- "$@")
    else
        (cd / && "$@")
    fi
}

# Prints the major version of the server that a pg_config belongs to. Fails with a message of ours if there
# is no such pg_config, or if the extension is not for that version.
server_version() {
    local told version
    [ -n "$(command -v "$1")" ] || die "there is no $1. Install the development package of your" \
        "PostgreSQL server, or name its pg_config: make PG_CONFIG=..."
    told=$("$1" --version 2>/dev/null) || told=''
    version=$(sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p' <<<"$told")
    case $version in
        15 | 16 | 17 | 18 | 19) echo "$version" ;;
        '') die "$1 is no pg_config: it names no version of PostgreSQL" ;;
        *) die "$1 belongs to PostgreSQL $version; the extension is for 15 to 19" ;;
    esac
}

# The first minor release of each major version that fixes CVE-2026-6460. The packages of a release of the extension are
# built for these or later ones: SECURITY.md.
fixed_releases=([15]=15.20 [16]=16.16 [17]=17.12 [18]=18.7 [19]=19~rc2)

# Prints the minor release of the server that a pg_config belongs to.
server_release() { "$1" --version | release_told; }

# Reads what a program of PostgreSQL prints for --version. Prints the release as dpkg and rpm sort releases: 15.20,
# 19~rc1.
release_told() { sed -nE 's/^.*PostgreSQL\)? ([0-9.]+)([a-z]+[0-9]*)?.*/\1~\2/p' | sed 's/~$//'; }

# Prints the pg_config of a server by its own path. Debian has another on PATH, which calls it, and cargo builds all anew
# where the path is another.
own_pg_config() {
    local own
    own=$("$1" --bindir)/pg_config
    [ -x "$own" ] || own=$(command -v "$1")
    echo "$own"
}

# Prints the directory for private servers and their programs. It is below target/, unless the server's user
# cannot get there, as in a checkout in root's home.
private_dir() {
    local dir=$root/target/private
    mkdir -p "$dir"
    if ! as_server_user test -x "$dir"; then
        dir=$cache/private-$(cksum <<<"$root" | cut -d' ' -f1)
        mkdir -p "$dir"
    fi
    echo "$dir"
}

# The time that whatever is packaged bears: that of the last commit, or of the archive that the sources came in.
source_epoch() {
    if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
        echo "$SOURCE_DATE_EPOCH"
    elif [ -e "$root/.git" ]; then
        git -C "$root" log -1 --format=%ct
    else
        stat -c %Y "$root/Cargo.toml"
    fi
}

# Writes the digests of all of this release that is in target/dist.
write_sums() (
    cd "$root/target/dist" || exit
    release=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    find . -type f -name "*$release*" -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS.new
    mv SHA256SUMS.new SHA256SUMS
)
