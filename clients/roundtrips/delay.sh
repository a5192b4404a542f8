#!/usr/bin/env bash
# delay.sh --listen PORT --upstream ADDRESS:PORT|SOCKET --delay-us MICROSECONDS: runs the delaying proxy of delay.c beside
# this script, and compiles it below target/ first if the source is newer.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"

source=$root/clients/roundtrips/delay.c program=$root/target/clients/roundtrips/delay
if ! [ "$program" -nt "$source" ]; then
    mkdir -p "${program%/*}"
    # Under a name of its own first, so that two calls at once do not run a half-written program.
    cc -std=c11 -O2 -Wall -Wextra -Werror -pthread -o "$program.$$" "$source"
    mv "$program.$$" "$program"
fi
exec "$program" "$@"
