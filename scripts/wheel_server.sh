#!/usr/bin/env bash
# wheel_server.sh: unpacks PostgreSQL 16 from the Python wheel "pgserver" and prints the path of its pg_config. It
# is unpacked once on a machine. No release of Debian has the source of this version any more, and the wheel
# brings the server with headers and test programs.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# The wheel, and the digest of the one file of it that was examined.
wheel='pgserver==0.1.4'
digest=d595789b47624a3d963aa9aa6359da9be31beb7e61f1a45541953242068b8813

prefix=$cache/pg16
if [ -x "$prefix/bin/pg_config" ]; then
    echo "$prefix/bin/pg_config"
    exit
fi
[ "$(uname -m)" = x86_64 ] || die "the wheel $wheel is for x86_64 only." \
    "A PostgreSQL 16 that is there already can be named: PG16_CONFIG=..."

mkdir -p "$cache"
chmod 755 "$cache"
exec 9>"$cache/pg16.lock"
flock 9

# Any version of Python will do here, since the server in the wheel does not use it.
fetch() {
    quietly python3 -m venv "$work/venv"
    echo "$wheel --hash=sha256:$digest" >"$work/requirements"
    quietly "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --require-hashes --only-binary=:all: --implementation cp --python-version 3.11 \
        --platform manylinux2014_x86_64 --target "$work/wheel" --requirement "$work/requirements"
}

# The programs look for libpq in a directory of the wheel, relative to their own place. This gives them its
# absolute path, so that copies of them find it too.
settle() {
    local file
    mv "$work/wheel/pgserver/pginstall" "$work/pg16"
    mv "$work"/wheel/pgserver.libs/* "$work/pg16/lib"
    while IFS= read -r file; do
        [ -z "$(patchelf --print-rpath "$file" 2>/dev/null)" ] ||
            patchelf --set-rpath "$prefix/lib" "$file"
    done < <(find "$work/pg16/bin" "$work/pg16/lib" -type f ! -name '*.a')
    chmod -R u=rwX,go=rX "$work/pg16"
    # Moved to its place as a whole, so that no half of it is ever found.
    rm -rf "$prefix"
    mv "$work/pg16" "$prefix"
}

if [ ! -x "$prefix/bin/pg_config" ]; then
    say "unpacking PostgreSQL 16 into $prefix (once)"
    work=$(mktemp -d "$cache/pg16.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch >&2
    settle >&2
fi
echo "$prefix/bin/pg_config"
