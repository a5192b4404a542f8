"""Runs a known load with known mistakes, and holds what the monitoring says against the driver's own count.

Usage: check.py static
       check.py live HOST SUPERUSER PSQL_DIRECTORY
       check.py incident HOST SUPERUSER PSQL_DIRECTORY LOG
       check.py unpreloaded HOST

`static` needs no server. `live` needs a server with the library preloaded, for itself. It makes the database shop.
The exporters and Prometheus are the real ones, with the files of monitoring/, and are asked over HTTP. Only times are
shorter: see stack.short_rules. `incident` makes the database till, beside it, and does what docs/operations.md says.
`unpreloaded` looks at the same database once the library is not preloaded any more.
"""

import sys

import told
from incident import incident
from live import live, unpreloaded
from static import static


def main():
    what, *arguments = sys.argv[1:]
    {"static": static, "live": live, "incident": incident, "unpreloaded": unpreloaded}[what](*arguments)
    sys.exit(1 if told.failed else 0)


main()
