#!/usr/bin/env bash
# venv.sh: prints the path of a Python that can run the chaos and ask over HTTP. Makes it below target/ if it is not there; of
# two that run at once the second waits.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"

venv=$root/target/clients/asking python=$root/target/clients/asking/bin/python
mkdir -p "${venv%/*}"
exec 9>"$venv.lock"
flock 9
if ! "$python" -c 'import psycopg, pytest' 2>/dev/null; then
    rm -rf "$venv"
    quietly python3 -m venv "$venv"
    quietly "$python" -m pip install --quiet --disable-pip-version-check 'psycopg[binary]>=3.2,<4' pytest
fi
echo "$python"
