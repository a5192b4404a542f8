#!/usr/bin/env bash
# run.sh PG_CONFIG PROFILE: makes the images for a server of version 18, unpacks them and runs what is in them. PG_CONFIG's
# server has no extension of its own: it finds that of the image by its two paths, preloads it, and the golden SQL passes.
# The image of a server with the extension is made on top of an image of PG_CONFIG's files. One line a test.
# shellcheck disable=SC2317 # the functions are called through check
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/../../scripts/server.sh"

pg_config=$1 profile=$2
work=$(mktemp -d "$(private_dir)/oci.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
release=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
umoci=$(command -v umoci) || umoci=$("$root/scripts/unpacked.sh" buildah umoci)/usr/bin/umoci
rootless=()
[ "$(id -u)" -eq 0 ] || rootless=(--rootless)

failed=0
# check NAME COMMAND...
check() {
    local name=$1
    shift
    # Not where a condition is looked at: there, bash would go on behind a command that fails.
    (
        trap server_remove EXIT
        "$@"
    ) >"$work/said" 2>&1 &
    if wait $!; then
        echo "ok $name"
    else
        echo "not ok $name"
        cat "$work/said"
        failed=1
    fi
}

# image NAME [VARIABLE...]: makes an image and unpacks it into NAME.
image() {
    local name=$1 archive
    shift
    archive=$root/$(make -s -C "$root" oci PG_CONFIG="$pg_config" PROFILE="$profile" "$@" | tail -n 1)
    cp "$archive" "$work/$name.tar"
    mkdir "$work/$name.image"
    tar -C "$work/$name.image" -xf "$archive"
    "$umoci" unpack "${rootless[@]}" --image "$work/$name.image:$release-18" "$work/$name"
    chmod 755 "$work/$name"
}

has_layout() {
    diff - <(cd "$work/alone/rootfs" && find . -type f | LC_ALL=C sort) <<END
./lib/idempotence.so
./licenses/idempotence/LICENSE
./licenses/idempotence/THIRD-PARTY
./share/extension/idempotence--$release.sql
./share/extension/idempotence.control
END
}

# What umoci makes of the image's labels and user. describes NAME USER
describes() {
    python3 - "$work/$1/config.json" "$2" "$release" "$(server_release "$pg_config")" <<'END'
import json, sys

config = json.load(open(sys.argv[1]))
labels, user = config["annotations"], config["process"]["user"]
assert user == {"uid": int(sys.argv[2]), "gid": int(sys.argv[2])}, user
assert labels["org.opencontainers.image.version"] == sys.argv[3], labels
assert labels["org.opencontainers.image.licenses"] == "PostgreSQL", labels
assert labels["idempotence.postgresql.minimum"] == sys.argv[4], labels
END
}

same_again() {
    make -s -C "$root" oci PG_CONFIG="$pg_config" PROFILE="$profile"
    cmp "$work/alone.tar" "$root"/target/dist/idempotence-"$release"-pg18-extension-*.oci.tar
}

passes_from_a_volume() {
    server_start "$pg_config" 'fsync = off' 'autovacuum = off' "shared_preload_libraries = 'idempotence'" \
        "extension_control_path = '\$system:$work/alone/rootfs/share'" \
        "dynamic_library_path = '\$libdir:$work/alone/rootfs/lib'"
    [ ! -e "$("$pg_config" --pkglibdir)/idempotence.so" ]
    timeout 600 "$root/scripts/installcheck.sh" "$pg_config" regress
}

# An image of the server's files.
has_base() {
    local part directory
    "$umoci" init --layout "$work/base"
    "$umoci" new --image "$work/base:server"
    for part in bindir pkglibdir sharedir; do
        directory=$("$pg_config" "--$part")
        "$umoci" insert "${rootless[@]}" --image "$work/base:server" "$directory" "$directory"
    done
    tar -C "$work/base" -cf "$work/base.tar" .
    image both BASE="oci-archive:$work/base.tar" RUN_AS=26:26
}

# An image whose server is older than the one that the library was built for. Only the release that pg_config prints is
# another one.
refuses_an_earlier_server() {
    local said
    # shellcheck disable=SC2016 # the stub expands these
    printf '#!/bin/sh\n[ "$1" != --version ] || exec echo "PostgreSQL %s.99"\nexec "%s" "$@"\n' \
        "$(server_version "$pg_config")" "$pg_config" >"$work/pg_config"
    chmod 755 "$work/pg_config"
    if said=$(make -s -C "$root" oci PG_CONFIG="$work/pg_config" PROFILE="$profile" \
        BASE="oci-archive:$work/base.tar" 2>&1); then
        return 1
    fi
    grep -F "and the extension was built for" <<<"$said"
}

starts_as_told() {
    local own
    grep -q '"shared_preload_libraries=idempotence"' "$work/both/config.json"
    own=$work/both/rootfs$("$pg_config" --bindir)/pg_config
    server_start "$own" 'fsync = off' "shared_preload_libraries = 'idempotence'"
    "$server_bin/psql" -X -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION idempotence' -c "SELECT idem_create_session('s')" \
        -c "SELECT * FROM idem_run('s', 'k', 'SELECT 1')" -c "SELECT * FROM idem_run('s', 'k', 'SELECT 1')"
}

check 'an image of the extension' image alone
check 'its files' has_layout
check 'its labels and user' describes alone 65532
check 'the same bytes again' same_again
check 'golden SQL with the extension in a volume' passes_from_a_volume
check 'an image on top of a server' has_base
check 'its labels and user' describes both 26
check 'an image of an earlier server' refuses_an_earlier_server
check 'a server with the extension' starts_as_told
exit $failed
