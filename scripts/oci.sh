#!/usr/bin/env bash
# oci.sh PG_CONFIG PACKAGE [BASE [RUN_AS]]: makes images of the files that build.sh left in PACKAGE, as archives in
# target/dist. Without BASE it is one with the extension alone, for a server that finds it by extension_control_path.
# BASE names an image of PG_CONFIG's server, as buildah knows it (oci-archive:PATH is one in a file): then the image has
# both, and RUN_AS says as which user and group it runs. Nothing but BASE is fetched. Prints the archive.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=$(server_version "$1")
minimum=$(server_release "$1")
pg_config=$(own_pg_config "$1")
package=$2 base=${3:-} run_as=${4:-}
cd "$root"
release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$base" ] || [ "$version" -ge 18 ] ||
    die "PostgreSQL $version takes no extension from another directory: name an image of the server, make oci BASE=..."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/context"
# Lays the package's files out: install_to LIBRARIES EXTENSION
install_to() {
    install -D -m 755 "$package$("$pg_config" --pkglibdir)/idempotence.so" -t "$work/context/$1"
    install -D -m 644 "$package$("$pg_config" --sharedir)/extension"/* -t "$work/context/$2"
}
if [ -z "$base" ]; then
    kind=extension
    install_to lib share/extension
else
    kind=server
    install_to "files$("$pg_config" --pkglibdir)" "files$("$pg_config" --sharedir)/extension"
fi
install -D -m 644 LICENSE THIRD-PARTY -t "$work/context/licenses/idempotence"

# Prints the version line of the server in the image, from its program. Nothing in the image is executed, since it may
# be for another architecture.
server_in_image() {
    python3 - "$work/image" "$("$pg_config" --bindir)/postgres" <<'END'
import json
import pathlib
import re
import sys
import tarfile

image, program = pathlib.Path(sys.argv[1]), sys.argv[2].strip("/")


def blob(entry):
    return image / "blobs" / entry["digest"].replace(":", "/")


def files_of(layer):
    """The files in a layer, and how to read them. umoci ends a layer without the padding of its last file."""
    with tarfile.open(layer) as files:
        while True:
            try:
                file = files.next()
            except tarfile.ReadError:
                return
            if file is None:
                return
            yield file, files.extractfile


index = json.loads((image / "index.json").read_text())
manifest = json.loads(blob(index["manifests"][0]).read_text())
for layer in reversed(manifest["layers"]):
    for file, opened in files_of(blob(layer)):
        if file.isfile() and file.name.lstrip("./") == program:
            version = re.search(rb"postgres \(PostgreSQL\) [0-9a-z.]+", opened(file).read())
            sys.exit(print(version[0].decode()))
END
}

if ! command -v buildah >/dev/null; then
    unpacked=$(scripts/unpacked.sh buildah umoci)
    PATH=$PATH:$unpacked/usr/bin
    # What buildah needs is beside it.
    LD_LIBRARY_PATH=$unpacked/usr/lib/$(uname -m)-linux-gnu
    export LD_LIBRARY_PATH
fi
# Who is not root is root in a namespace of his own: the images hold files of root's.
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(env _CONTAINERS_USERNS_CONFIGURED=1 unshare --map-root-user)
# The machine's settings and store of images are left alone.
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$work/policy.json"
moment=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
XDG_RUNTIME_DIR=$work HOME=$work quietly "${as_root[@]}" buildah --root "$work/store" --runroot "$work/run" \
    --storage-driver vfs build --signature-policy "$work/policy.json" --isolation chroot --layers=false \
    --timestamp "$moment" --build-arg VERSION="$release" --build-arg MINIMUM="$minimum" \
    --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || true)" \
    ${base:+--build-arg BASE="$base"} ${run_as:+--build-arg RUN_AS="$run_as"} \
    --file "packaging/oci/$kind.Containerfile" --tag "oci:$work/image:$release-$version" "$work/context"
# The library may need functions that earlier minor releases of the server lack.
if [ -n "$base" ]; then
    found=$(server_in_image | release_told)
    [ -n "$found" ] || die "$base has no $("$pg_config" --bindir)/postgres"
    is_sorted "$minimum" "$found" ||
        die "$base has PostgreSQL $found, and the extension was built for $minimum: take a newer image of the server"
fi
archive=target/dist/idempotence-$release-pg$version-$kind-$(uname -m).oci.tar
mkdir -p target/dist
# The same files make the same archive.
tar -C "$work/image" --sort=name --mtime="@$moment" --owner=0 --group=0 --numeric-owner --format=gnu -cf "$archive" .
echo "$archive"
