"""Prints monitoring/sql_exporter.yml, made from monitoring/postgres_exporter.yaml.

Usage: sql_exporter.py SOURCE
"""

import sys
import textwrap

import yaml

HEAD = """\
# Queries for prometheus-sql-exporter. Made from postgres_exporter.yaml by tests/monitoring/sql_exporter.py: do not edit.
#
# Put it in the place of /etc/prometheus-sql-exporter.yml, or add its job to the jobs there. One connection for each
# database that has the extension. This exporter calls the metrics sql_NAME{col="COLUMN"}; prometheus.yml gives them the
# names that the rules and the dashboard use. It asks by itself, once an interval, and serves what it was told last.
jobs:
  - name: idempotence
    interval: 15s
    connections:
      - postgres://prometheus@/shop?host=/var/run/postgresql&sslmode=disable
    queries:
"""


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        queries = yaml.safe_load(file)
    out = [HEAD]
    for name, query in queries.items():
        columns = [next(iter(metric.items())) for metric in query["metrics"]]
        labels = [column for column, what in columns if what["usage"] == "LABEL"]
        values = [column for column, what in columns if what["usage"] != "LABEL"]
        out.append(f"      - name: {name}\n")
        out.append(f"        help: \"{name}\"\n")
        out.append(f"        labels: [{', '.join(labels)}]\n")
        out.append(f"        values: [{', '.join(values)}]\n")
        out.append("        allow_zero_rows: true\n")
        out.append("        query: |\n" + textwrap.indent(query["query"], " " * 10))
    sys.stdout.write("".join(out))


main()
