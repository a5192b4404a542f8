#!/usr/bin/env bash
# uninstall.sh PG_CONFIG [DESTDIR]: removes what install_files.sh has installed for that server.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

server_version "$1" >/dev/null
extension=${2:-}$("$1" --sharedir)/extension
rm -f "${2:-}$("$1" --pkglibdir)/idempotence.so" "$extension/idempotence.control" "$extension"/idempotence--*.sql
