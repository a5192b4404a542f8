#!/usr/bin/env bash
# check_modules.sh PACKAGE TARGET [OPTION...]: fails if modules of a crate import each other in a circle. Fails too
# if its top modules do, where each counts together with all that is in it. TARGET is --lib or --bin=NAME. Further
# options are passed to cargo. A module counts as using its submodules, so a submodule may not use what its parent
# defines.
#
# cargo-modules reads the imports. Clippy makes sure that all paths are imported (absolute_paths).
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

package=$1
shift
edges=$(cargo modules dependencies --package "$package" "$@" \
    --no-externs --no-sysroot --no-fns --no-traits --no-types |
    sed -nE 's/^ *"([^"]+)" -> "([^"]+)".*"(uses|owns)" edge$/\1 \2/p' | awk '$1 != $2')
[ -n "$edges" ] || die "cargo-modules finds no modules in $package"

# "a::b::c" is part of the top module "a::b".
top=$(sed -E 's/(::[a-z0-9_]+)::[^ ]*/\1/g' <<<"$edges" | awk '$1 != $2 && $1 ~ /::/ && $2 ~ /::/')
for graph in "$edges" "$top"; do
    tsort <<<"$graph" >/dev/null || die "modules of $package import each other in a circle, see above"
done
