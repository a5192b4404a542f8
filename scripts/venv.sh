#!/usr/bin/env bash
# venv.sh [PACKAGE...]: prints the path of a Python that has what the tests of clients/ and of monitoring/ need, and these packages.
# Makes it below target/ if it is not there; of two calls at once the second waits. A virtual environment is what PEP 668 asks for.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

venv=$root/target/venv python=$root/target/venv/bin/python
mkdir -p "$root/target"
exec 9>"$venv.lock"
flock 9
if ! "$python" -c 'import psycopg, pytest, yaml' 2>/dev/null; then
    rm -rf "$venv"
    quietly python3 -m venv "$venv"
    quietly "$python" -m pip install --quiet --disable-pip-version-check 'psycopg[binary]>=3.2,<4' pytest 'PyYAML>=6,<7'
fi
[ $# -eq 0 ] || quietly "$python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$python"
