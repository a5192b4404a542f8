#!/usr/bin/env bash
# run.sh [PG_CONFIG]: the tests of the two proxies, against a private server without the extension (default: Debian's
# PostgreSQL 15). A line for each test; fails if one does.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
trap server_remove EXIT

python=$("$root/scripts/venv.sh")
server_start "${1:-$pg15_config}" 'fsync = off'
export PYTHONPATH=$root/clients/python/tests PYTHONDONTWRITEBYTECODE=1
timeout 300 "$python" -m pytest -p no:cacheprovider -p conftest -q --tb=short "$here"
