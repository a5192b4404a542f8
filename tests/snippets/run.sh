#!/usr/bin/env bash
# run.sh URI: runs the psycopg and node-postgres examples of docs/snippets against the server at URI (a
# superuser's, into which the extension is installed; it makes what it needs in that database). The
# drivers go below target/, never into the system. One line an example; fails if one does.
set -euo pipefail

uri=${1:?usage: run.sh URI}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$root/target/snippets
mkdir -p "$work"

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Silent, but for what went wrong.
quietly() {
    local log
    log=$("$@" 2>&1) || {
        printf '%s\n' "$log" >&2
        die "failed: $*"
    }
}

for tool in python3 node npm; do
    command -v "$tool" >/dev/null || die "there is no $tool: install python3-venv, nodejs and npm"
done

# A virtual environment is what PEP 668 asks for. One that was broken off is made again.
python=$work/venv/bin/python
if ! "$python" -c 'import psycopg' 2>/dev/null; then
    rm -rf "$work/venv"
    quietly python3 -m venv "$work/venv"
    quietly "$python" -m pip install --quiet --disable-pip-version-check 'psycopg[binary]>=3.2,<4'
fi

# Modules are looked for beside the program, so it runs from a copy.
if ! [ -d "$work/node/node_modules/pg" ]; then
    rm -rf "$work/node"
    mkdir -p "$work/node"
    quietly npm install --prefix "$work/node" --no-save --no-audit --no-fund --loglevel=error 'pg@8'
fi
cp "$root/docs/snippets/node_pg.mjs" "$work/node/"

failed=0
run() {
    "$python" "$root/tests/snippets/check.py" "$1" "$uri" "${@:2}" || failed=1
}
run psycopg "$python" "$root/docs/snippets/psycopg3.py"
run node-pg node "$work/node/node_pg.mjs"
exit $failed
