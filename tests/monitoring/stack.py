"""The real exporters and the real Prometheus, as a DBA sets them up, on ports of their own."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
QUERIES = MONITORING / "postgres_exporter.yaml"
RULES = MONITORING / "idempotence.rules.yml"

# No proxy of the environment stands between two processes of one machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# The labels that tell where a sample comes from, and not what it is.
WHENCE = {"server", "driver", "host", "database", "user", "sql_job", "job", "instance", "col"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with OPENER.open(url, timeout=10) as answer:
        return answer.read().decode()


def until(what, done, seconds=30):
    """The first true answer of `done`, which is asked again and again."""
    deadline = time.monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} seconds: {what}")
        time.sleep(0.1)


def series(name, labels):
    """A series by its name and its labels. An empty label is none."""
    return name, frozenset((key, value) for key, value in labels.items() if value != "" and key not in WHENCE)


def parse(text):
    """The samples of an exporter's answer, by their series: the value, and the name's type."""
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            types[name] = kind
        elif line and not line.startswith("#"):
            name, inside, value = SAMPLE.match(line).groups()
            labels = {key: re.sub(r"\\(.)", r"\1", text) for key, text in LABEL.findall(inside or "")}
            # prometheus-sql-exporter's way: prometheus.yml does this there.
            if name.startswith("sql_idempotence"):
                name = f"{name.removeprefix('sql_')}_{labels['col']}"
            samples[series(name, labels)] = float(value)
    return samples, types


# How much shorter times are in the test than in the rules: a minute is a second, and nothing is longer than this.
SHORTER = 60
LONGEST = 20


# How long an alert's state has to last, at most.
LONGEST_FOR = 5


def shorter(seconds, longest=LONGEST):
    return max(1, min(longest, round(seconds / SHORTER)))


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def short_rules(text):
    """The rules with short times, windows and thresholds that are times. Sizes become those of an empty database."""
    def duration(match):
        longest = LONGEST_FOR if match[1] == "for: " else LONGEST
        return f"{match[1]}{shorter(int(match[2]) * UNITS[match[3]], longest)}s"

    text = re.sub(r"(\[|offset |for: )(\d+)([smhd])\b", duration, text)
    text = re.sub(r"(_seconds(?:\{[^}]*\})? > )(\d+)",
                  lambda match: f"{match[1]}{min(LONGEST / 4, int(match[2]) / SHORTER)}", text)
    return text.replace("1e9", "1e5").replace(":increase15m > 900", ":increase15m > 15")


class Stack:
    """Processes that end with this object. `uri` names a database of the server."""

    def __init__(self, host, database, role="prometheus"):
        self.host, self.database, self.role = host, database, role
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="monitoring."))
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.processes):
            self.stop(name)
        subprocess.run(["rm", "-rf", self.dir], check=True)

    def start(self, name, port, command, environment=None):
        with open(self.dir / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(environment or {})})

        def answers():
            if self.processes[name].poll() is not None:
                raise RuntimeError(f"{name} has ended:\n{(self.dir / f'{name}.log').read_text()[-2000:]}")
            try:
                return get(f"http://127.0.0.1:{port}/metrics")
            except (urllib.error.URLError, ConnectionError):
                return None

        until(f"{name} answers", answers)

    def stop(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_postgres_exporter(self, name="postgres_exporter", options=(), database=None):
        port = free_port()
        source = f"user={self.role} host={self.host} dbname={database or self.database} sslmode=disable"
        self.start(name, port, [
            "prometheus-postgres-exporter", f"--web.listen-address=127.0.0.1:{port}", "--disable-default-metrics",
            "--disable-settings-metrics", "--no-collector.bgwriter", *options],
            {"DATA_SOURCE_NAME": source, "PG_EXPORTER_EXTEND_QUERY_PATH": str(QUERIES)})
        return port

    def start_sql_exporter(self):
        port = free_port()
        text = (MONITORING / "sql_exporter.yml").read_text(encoding="utf-8")
        uri = f"postgres://{self.role}@/{self.database}?host={self.host}&sslmode=disable"
        text, found = re.subn(r"- postgres://.*", f"- {uri}", text)
        text, intervals = re.subn(r"interval: 15s", "interval: 1s", text)
        assert (found, intervals) == (1, 1)
        (self.dir / "sql_exporter.yml").write_text(text, encoding="utf-8")
        self.start("sql_exporter", port, ["prometheus-sql-exporter", "-config.file", "sql_exporter.yml",
                                          "-web.listen-address", f"127.0.0.1:{port}"], {"LOGLEVEL": "WARN"})
        return port

    def start_prometheus(self, rules, postgres_port, sql_port=None):
        """Prometheus with the shipped configuration: only the ports and the intervals are other."""
        self.prometheus_port = free_port()
        text = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
        # An interval is the most that a scrape may take, too, on a machine that may be busy.
        text = text.replace("scrape_interval: 15s", "scrape_interval: 2s").replace("interval: 15s", "interval: 1s")
        text = text.replace("localhost:9187", f"127.0.0.1:{postgres_port}")
        if sql_port:
            text = text.replace("localhost:9237", f"127.0.0.1:{sql_port}")
        else:
            text = text[:text.index("  # prometheus-sql-exporter calls")]
        (self.dir / "prometheus.yml").write_text(text, encoding="utf-8")
        (self.dir / "idempotence.rules.yml").write_text(rules, encoding="utf-8")
        self.start("prometheus", self.prometheus_port, [
            "prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            "--storage.tsdb.path=data", "--log.level=warn"])
        until("Prometheus takes queries", self.takes_queries)

    def takes_queries(self):
        try:
            return get(f"http://127.0.0.1:{self.prometheus_port}/-/ready")
        except urllib.error.HTTPError:
            return None

    def api(self, path, **arguments):
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            answer = json.loads(get(url))
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path} {arguments}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        """An instant vector: what each series is now."""
        return {series(one["metric"].get("__name__", ""), {k: v for k, v in one["metric"].items() if k != "__name__"}):
                float(one["value"][1]) for one in self.api("query", query=expression)["result"]}

    def query_range(self, expression, start, end, step=1):
        return [(one["metric"], [(float(at), float(value)) for at, value in one["values"]])
                for one in self.api("query_range", query=expression, start=start, end=end, step=step)["result"]]

    def alerts(self, state="firing"):
        return [alert for alert in self.api("alerts")["alerts"] if alert["state"] == state]
