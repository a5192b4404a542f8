#!/usr/bin/env bash
# venv.sh [PACKAGE...]: prints the path of a Python that has what the tests of monitoring/ need, and these packages.
# Makes it below target/ if it is not there. A virtual environment is what PEP 668 asks for.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"

venv=$root/target/monitoring/venv python=$root/target/monitoring/venv/bin/python
if ! "$python" -c 'import psycopg, yaml' 2>/dev/null; then
    rm -rf "$venv"
    mkdir -p "${venv%/*}"
    quietly python3 -m venv "$venv"
    quietly "$python" -m pip install --quiet --disable-pip-version-check 'psycopg[binary]>=3.2,<4' 'PyYAML>=6,<7'
fi
[ $# -eq 0 ] || quietly "$python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$python"
