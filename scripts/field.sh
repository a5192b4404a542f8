#!/usr/bin/env bash
# field.sh [--setup | --server PG_CONFIG] [OPTION...]: measures what people would otherwise use beside the extension, and
# kills each while it works: bench/field. `make bench` runs it as one of its sections. By itself it writes that section
# below target/field. `field.sh --quick` takes less than five minutes, `field.sh --help` lists the options.
#
# --setup installs what it needs, and no more. --server names an installation with the extension in it, so that none is
# built; otherwise it is PG_CONFIG's (default: Debian's PostgreSQL 15). Redis is Debian's. The Python packages have the
# versions of bench/field/requirements.txt, and go below target/, never into the system.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/server.sh"

cd "$root"
field=$root/target/field
python=$field/venv/bin/python

set_up() {
    local wanted=$root/bench/field/requirements.txt
    "$root/scripts/packages.sh" redis-server python3-venv
    if ! cmp -s "$wanted" "$field/venv/requirements.txt"; then
        say "installing the Python packages of bench/field (once)"
        rm -rf "$field/venv"
        mkdir -p "$field"
        quietly python3 -m venv "$field/venv"
        quietly "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            --require-hashes --requirement "$wanted"
        cp "$wanted" "$field/venv/requirements.txt"
    fi
}

case ${1:-} in
    --setup)
        set_up
        exit
        ;;
    --server)
        pg_config=${2:?usage: field.sh --server PG_CONFIG}
        shift 2
        set_up
        ;;
    *)
        scripts/setup.sh
        set_up
        pg_config=$(scripts/installation.sh "${PG_CONFIG:-$pg15_config}")
        ;;
esac

# The settings of the rest of the benchmark, and connections for those who open several in each process.
trap server_remove EXIT
server_start "$pg_config" 'shared_buffers = 512MB' 'min_wal_size = 2GB' 'max_wal_size = 16GB' \
    'checkpoint_timeout = 1h' 'max_connections = 300'
export PYTHONPATH=$root/bench/field PYTHONPYCACHEPREFIX=$field/pycache
"$python" bench/field/main.py --bindir "$server_bin" --data "$server_dir/data" --directory "$field/redis" \
    --section "$field/section.md" --picture "$field/benchmarks-field.svg" --results "$field/results.json" "$@"
