#!/usr/bin/env bash
# run.sh URI: runs what README.md, docs/guide.md and the pages of the reference say, and the examples of docs/snippets,
# against the server at URI (a superuser's, into which the extension is installed; it makes what it needs in that
# database and in another one, and needs the server for itself; the guide gets a second server, which crashes). The
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

for tool in python3 node npm cargo; do
    command -v "$tool" >/dev/null || die "there is no $tool: install python3-venv, nodejs, npm and cargo"
done

# A virtual environment is what PEP 668 asks for. One that was broken off is made again.
python=$work/venv/bin/python
if ! "$python" -c 'import psycopg, psycopg_pool' 2>/dev/null; then
    rm -rf "$work/venv"
    quietly python3 -m venv "$work/venv"
    quietly "$python" -m pip install --quiet --disable-pip-version-check 'psycopg[binary,pool]>=3.2,<4'
fi

# The client is run from the tree.
export PYTHONPATH=$root/clients/python/src

# Modules are looked for beside the program, so it runs from a copy.
modules=$work/node/node_modules
if ! [ -d "$modules/typescript" ]; then
    rm -rf "$work/node"
    mkdir -p "$work/node"
    quietly npm install --prefix "$work/node" --no-save --no-audit --no-fund --loglevel=error 'pg@8' 'typescript@5' '@types/node@18'
fi
# The client, as it is in the tree.
mkdir -p "$modules/idempotence"
cp "$root/clients/node/package.json" "$modules/idempotence/"
quietly "$modules/.bin/tsc" -p "$root/clients/node" --typeRoots "$modules/@types" --outDir "$modules/idempotence/dist"
cp "$root/docs/snippets/node_pg.mjs" "$work/node/"

# The Rust ones are examples of the demo's crate too, built just as the unit tests build them.
quietly cargo build --quiet --locked --examples \
    --workspace --exclude idempotence --exclude idempotence-cluster-tests --exclude idempotence-protocol-model
rust=$root/target/debug/examples

failed=0
# run NAME COMMAND...: of a request with a key; run_session: of a client session; run_pipeline: in one round trip.
run() {
    "$python" "$root/tests/snippets/check.py" "$1" "$uri" "${@:2}" || failed=1
}
run_session() {
    "$python" "$root/tests/snippets/check_session.py" "$1" "$uri" "${@:2}" || failed=1
}
run_pipeline() {
    "$python" "$root/tests/snippets/check_pipeline.py" "$1" "$uri" "${@:2}" || failed=1
}
"$python" "$root/tests/snippets/check_readme.py" "$uri" "$python" || failed=1
"$python" "$root/tests/snippets/check_reference.py" "$uri" "$python" || failed=1
"$python" "$root/tests/snippets/check_guide.py" "$uri" "$python" "$root/docs/snippets/charge_ship_notify.py" || failed=1
run psycopg "$python" "$root/docs/snippets/psycopg3.py"
run node-pg node "$work/node/node_pg.mjs"
run tokio-postgres "$rust/tokio_postgres"
run_session psycopg-client-session "$python" "$root/docs/snippets/client_session.py"
run_session tokio-postgres-client-session "$rust/client_session"
"$python" "$root/tests/snippets/check_nodes.py" psycopg-nodes "$uri" "$python" "$root/docs/snippets/nodes.py" || failed=1
run psycopg-pipeline "$python" "$root/docs/snippets/pipeline_psycopg.py"
run tokio-postgres-pipeline "$rust/pipeline_tokio_postgres"
run_pipeline psycopg-one-round-trip "$python" "$root/docs/snippets/pipeline_psycopg.py"
run_pipeline tokio-postgres-one-round-trip "$rust/pipeline_tokio_postgres"
run_pipeline pgbench-one-round-trip "$root/docs/snippets/pipeline_pgbench.sql"
exit $failed
