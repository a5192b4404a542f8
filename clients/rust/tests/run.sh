#!/usr/bin/env bash
# run.sh PG_CONFIG: the tests of the client for Rust, against a private server: both files of vectors with each driver, the
# axum layer, the round trips, the completer, PgBouncer, a server that does not preload the library, the quick start of
# README.md, and the chaos. IDEM_LONG=1: chaos with 5000 keys. IDEM_MANAGED, the path of the edition for managed services:
# that edition instead of the extension, without the tests that need the extension. A line for each test; fails if one
# fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
pg_config=${1:?usage: run.sh PG_CONFIG}
trap server_remove EXIT

# The programs that send requests and kill processes are in Python.
python=$("$root/scripts/venv.sh")
export CARGO_TARGET_DIR=$root/target/clients/rust
manifest=$here/../Cargo.toml
tests=(cargo test --quiet --locked --manifest-path "$manifest" --all-features)
quietly cargo build --quiet --locked --manifest-path "$manifest" --all-features --example served
quietly "${tests[@]}" --no-run
served=$CARGO_TARGET_DIR/debug/examples/served

settings=("shared_preload_libraries = 'idempotence'")
[ -z "${IDEM_MANAGED:-}" ] || settings=()
server_start "$pg_config" 'fsync = off' 'max_connections = 200' "${settings[@]}"
"$server_bin/createdb" clients
IDEM_URI="postgresql:///clients?host=$PGHOST&port=5432&user=postgres"
export IDEM_URI PYTHONDONTWRITEBYTECODE=1
vectors=$here/../../http_vectors.json
status=0

cd "$here/../../python/tests"
for driver in tokio-postgres sqlx; do
    IDEM_SERVED="$served $driver {port} $IDEM_URI $vectors" timeout 300 "$python" -m pytest -p no:cacheprovider -q --tb=short \
        test_http_vectors.py || status=1
done
timeout 300 "${tests[@]}" --test vectors || status=1
timeout 100 "${tests[@]}" --lib || status=1
if [ -z "${IDEM_MANAGED:-}" ]; then
    for test in axum options trips completer; do
        timeout 400 "${tests[@]}" --test "$test" || status=1
    done
    # The same layer through PgBouncer, which gives each transaction another connection of the server. The skipped test runs
    # queries as sqlx does, with prepared statements, which not every version of PgBouncer supports.
    if command -v pgbouncer >/dev/null; then
        pooler=$(mktemp -d)
        [ "$(id -u)" -ne 0 ] || chown postgres: "$pooler"
        printf '%s\n' '[databases]' "* = host=$PGHOST port=$PGPORT user=postgres" '[pgbouncer]' 'listen_addr =' \
            "unix_socket_dir = $pooler" 'listen_port = 6432' 'auth_type = any' 'pool_mode = transaction' \
            'ignore_startup_parameters = extra_float_digits' "logfile = $pooler/log" "pidfile = $pooler/pid" >"$pooler/ini"
        as_server_user pgbouncer -q -d "$pooler/ini"
        for test in axum options; do
            IDEM_POOLER="postgresql:///clients?host=$pooler&port=6432&user=postgres" \
                timeout 400 "${tests[@]}" --test "$test" -- --skip sqlx_functions || status=1
        done
        kill "$(cat "$pooler/pid")"
        rm -rf "$pooler"
    fi
    # Its debugging information is that of the rest, so that the compiled crates serve both.
    PATH=$server_bin:$PATH CARGO_TERM_QUIET=true CARGO_PROFILE_DEV_DEBUG=false \
        timeout 900 "$python" "$here/typed.py" "$IDEM_URI" "$(command -v cargo)" || {
        echo 'not ok README.md'
        status=1
    }
fi

keys=200 kills=20
if [ -n "${IDEM_LONG:-}" ]; then
    keys=5000 kills=500
    # Each feature without the others.
    for features in '' sqlx tokio-postgres axum,sqlx; do
        quietly cargo check --quiet --locked --manifest-path "$manifest" --lib --features "$features" || status=1
    done
fi
for driver in tokio-postgres sqlx; do
    timeout 1200 "$python" "$here/../../chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" --uri "$IDEM_URI" \
        --keys "$keys" --kills "$kills" -- "$served" "$driver" '{port}' '{uri}' || status=1
done

if [ -z "${IDEM_MANAGED:-}" ]; then
    server_remove
    server_start "$pg_config" 'fsync = off'
    "$server_bin/createdb" clients
    IDEM_URI="postgresql:///clients?host=$PGHOST&port=5432&user=postgres" timeout 100 "${tests[@]}" --test check || status=1
fi
exit $status
