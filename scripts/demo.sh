#!/usr/bin/env bash
# demo.sh [OPTION...]: runs the demo on PG_CONFIG's server (default: Debian's PostgreSQL 15), with a cluster of its own.
# Takes the extension that is installed there if it has this version; else builds it, and installs it into a private copy
# of that server. Does all the set-up itself. `demo.sh --help` lists the options.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
pg_config=${PG_CONFIG:-$pg15_config}
release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

is_installed() {
    [ -n "$(command -v "$pg_config")" ] && [ -e "$("$pg_config" --pkglibdir)/idempotence.so" ] &&
        grep -q "^default_version = '$release'" "$("$pg_config" --sharedir)/extension/idempotence.control" 2>/dev/null
}

# In cargo's profile for development: the clients wait more than they work.
build_demo() { quietly cargo build --locked -p idempotence-demo; }

if is_installed; then
    say "taking the extension that is installed in $("$pg_config" --pkglibdir)"
    scripts/packages.sh gcc libc6-dev
    private=$pg_config
    say "building the demo"
    build_demo
else
    scripts/setup.sh
    # Much of the extension's build keeps one core busy only. The demo is built on the other.
    say "building the demo"
    build_demo &
    private=$(scripts/installation.sh "$pg_config") || { wait && exit 1; }
    wait $!
fi
exec target/debug/idempotence-demo --pg-config "$private" --dir "$(private_dir)" "$@"
