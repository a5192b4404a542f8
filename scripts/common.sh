# Sourced by the other scripts: where things are, and how to speak.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/target/tools/bin:$PATH"
umask 022
# What a make around us was told is not meant for the one that we call.
unset MAKEFLAGS MAKELEVEL

# What is built once a machine, outside the tree. As root it must be a place that the postgres
# user can reach, which root's home is not.
if [ "$(id -u)" -eq 0 ]; then
    cache=${IDEMPOTENCE_CACHE:-/var/cache/idempotence}
else
    cache=${IDEMPOTENCE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/idempotence}
fi

# The server used where none is named: Debian's.
pg15_config=${PG15_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Runs a long command silently; the end of its output is shown only if it fails.
quietly() {
    local log rc=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || rc=$?
    if [ "$rc" -ne 0 ]; then
        tail -n 100 "$log" >&2
        printf 'error: failed (%s): %s\n' "$rc" "$*" >&2
    fi
    rm -f "$log"
    return "$rc"
}

# PostgreSQL refuses to run as root; there its programs run as the postgres user, and from a
# directory that one can surely enter.
as_server_user() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && runuser -u postgres -- "$@")
    else
        (cd / && "$@")
    fi
}

# The major version of the server that a pg_config belongs to.
major_version() {
    "$1" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/'
}

# Where private servers and their programs live: below target/, unless the server's user cannot
# get there, as in a checkout in root's home.
private_dir() {
    local dir=$root/target/private
    mkdir -p "$dir"
    if ! as_server_user test -x "$dir"; then
        dir=$cache/private-$(cksum <<<"$root" | cut -d' ' -f1)
        mkdir -p "$dir"
    fi
    echo "$dir"
}
