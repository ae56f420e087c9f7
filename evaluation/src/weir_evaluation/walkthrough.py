"""The walk of docs/walkthrough.md: an empty folder becomes a service that is repaired, forked, scaled and watched.

``python -m weir_evaluation.walkthrough docs/walkthrough.md`` takes it with real processes (Apache Kafka, ``weir run``
below a supervisor, nginx) and writes what was typed and printed. All results are compared with the truth. Times, ports
and paths are made the same in every walk; numbers of batches are what they are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.engine.checkpoint import CheckpointLayout
from weir.engine.inspect.inspection import open_checkpoint, state_parts
from weir_evaluation.brokers.kafka import Kafka, free_ports

PATIENCE = 180.0  # seconds that a step may take on a busy machine
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
HISTORY, STREAM = 6000, 3000  # visits
START = datetime(2024, 1, 1, tzinfo=UTC)
PAGES = ["/", "/cart", "/help", "/jobs", "/legal", "/news", "/shop"]
COUNTRIES = ["DE", "FR", "JP", "US", "us"]  # somebody writes it small
TOKEN = "walk"

APP = '''\
import os

import weir

VISIT = "page string, country string, time timestamp"


def application(visits):
    """Say what becomes of visits, wherever they come from."""
    visits = visits.event_time("time", lateness="1 hour")
    countries = visits.count("country", name="countries", emit="rows")
    return countries.count("page", name="pages", window=weir.tumbling("time", "1 hour"))


def history(spark):
    return application(weir.source(spark.read.parquet("history/"), "visits"))


def app():
    return application(weir.kafka(os.environ["BROKERS"], "visits", VISIT, name="visits"))
'''
CONFIG = """\
checkpoint = "ckpts/blue"
servers = 2

[[sinks]]
name = "parquet"
path = "out/blue"
operator = "pages"

[spark]
master = "local[4]"
driver.memory = "1g"
"""
REPAIR = '''\
def countries(old):
    """From counts by country as it was written to counts by country."""
    counts = {}
    for row in old.to_pylist():
        country = row["country"].upper()
        counts[country] = counts.get(country, 0) + row["count"]
    return [{"country": country, "count": count} for country, count in counts.items()]
'''
PLAIN = '    visits = visits.event_time("time", lateness="1 hour")\n'
UPPER = f"{PLAIN}    visits = visits.map(lambda row: row._asdict() | {{'country': row.country.upper()}})\n"
WITHOUT_HELP = f'{UPPER}    visits = visits.filter(lambda row: row.page != "/help")\n'
PROXY = """\
daemon off; master_process off; pid pid; error_log errors;
events {}
http {
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  server {
    listen 127.0.0.1:8080;
    location /tools/weir/ { proxy_pass http://127.0.0.1:8642/; }
  }
}
"""


class Supervisor:
    """What systemd does with deploy/weir-posts.service: start again what fails, unless it was refused.

    A process that ends with 0 was told to; one that ends with 2 would be refused again.
    """

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._start: Callable[[], subprocess.Popen[str]] = lambda: subprocess.Popen(
            command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
        )
        self.process = self._start()
        self.code: int | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                self.lines.append(line.rstrip())
            code = self.process.wait()
            if code in (0, 2):
                self.lines.append(f"supervisor: ended with exit code {code}")
                self.code = code
                return
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.lines.append(f"supervisor: {how}; starts again")
            self.process = self._start()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int | None:
        """Wait for the end of what was told to stop, and return its exit code."""
        self._thread.join(PATIENCE)
        return self.code


class Walk:
    """Takes the walk in a folder, and keeps what was typed and printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, list[str]()
        self.home = "/home/you/visits"
        self._same: list[tuple[str, str]] = [(str(folder), self.home)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
        self.environment = {**clean, "PATH": path, "WEIR_WATCH_TOKEN": TOKEN, "COLUMNS": "100"}
        self.sent: list[dict[str, Any]] = []
        self._children: list[Any] = []
        self.say(_INTRODUCTION)

    # ------------------------------------------------------------------ what the page is made of

    def say(self, text: str) -> None:
        """Put paragraphs on the page, in lines as long as those of other pages."""
        for paragraph in text.split("\n\n"):
            self.text.append(textwrap.fill(paragraph, 110, break_long_words=False, break_on_hyphens=False))

    def block(self, lines: Iterable[str], kind: str = "") -> None:
        self.text.append("\n".join([f"```{kind}", *map(self.stable, lines), "```"]))

    def file(self, name: str, content: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(self.real(content))

    def stable(self, line: str) -> str:
        """Return a line as every walk prints it."""
        for found, told in self._same:
            line = line.replace(found, told)
        line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?= [A-Z]+ )", "12:00:00", line)
        return line.rstrip()

    def real(self, text: str) -> str:
        """Return a text with this walk's ports and broker."""
        for found, told in self._same[1:]:
            text = text.replace(told, found)
        return text

    def command(self, command: str, code: int = 0) -> str:
        """Run a command to its end, and put it on the page with what it prints."""
        words = shlex.split(self.real(command))
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        self.block([f"$ {command}", *done.stdout.splitlines()])
        if done.returncode != code:
            raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def background(self, command: str) -> subprocess.Popen[str]:
        """Start a command that stays."""
        child = subprocess.Popen(
            shlex.split(self.real(command)),
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._children.append(child)
        return child

    def service(self, command: str) -> Supervisor:
        """Start a command below a supervisor."""
        made = Supervisor(shlex.split(self.real(command)), self.folder, self.environment)
        self._children.append(made)
        return made

    def close(self) -> None:
        """Kill what is left of a walk that was broken off."""
        for child in self._children:
            process = child.process if isinstance(child, Supervisor) else child
            if isinstance(child, Supervisor):
                child._start = lambda: subprocess.Popen(["true"], stderr=subprocess.PIPE, text=True)
            if process.poll() is None:
                process.kill()
            process.wait()

    # ------------------------------------------------------------------ the walk

    def take(self) -> str:
        """Take the walk; return the page."""
        try:
            self._history()
            with Kafka() as brokers:
                ports = free_ports(2)
                self._same += [
                    (brokers.servers, "broker:9092"),
                    (f"127.0.0.1:{ports[0]}", "127.0.0.1:8080"),
                    (f"127.0.0.1:{ports[1]}", "127.0.0.1:8642"),
                    (f"--port {ports[1]}", "--port 8642"),
                ]
                self.environment["BROKERS"] = brokers.servers
                brokers.create("visits", 2)
                self._stream(brokers)
        finally:
            self.close()
        return "\n\n".join(self.text) + "\n"

    def _history(self) -> None:
        (self.folder / "history").mkdir()
        self.sent += visits(0, HISTORY)
        kinds = pa.schema([("page", "string"), ("country", "string"), ("time", pa.timestamp("us", "UTC"))])
        for number in range(3):
            part = self.sent[number::3]
            pq.write_table(pa.Table.from_pylist(part, kinds), self.folder / f"history/{number}.parquet")
        self.file("app.py", APP)
        self.file("weir.toml", CONFIG)
        self.say(
            "## History\n\n"
            "Visits of a web site lie in `history/`, three files of Parquet with the columns `page`, `country` and "
            "`time`. New ones will come over Kafka. We want visits per country, and visits per page and hour. This is "
            "`app.py`:"
        )
        self.block(["# not run: it is a file of the walk", *APP.splitlines()], "python")
        self.say("And `weir.toml`:")
        self.block(CONFIG.splitlines())
        self.say("Does it fit?")
        self.command("weir run app.py:history --config weir.toml --check")
        self.say(
            "Go through the history. Its last hours stay open, since the stream will go on with them: that is "
            "`--keep-open`."
        )
        self.command("weir run app.py:history --config weir.toml --keep-open")
        self.command("weir state ckpts/blue countries")
        self.compare("blue", Counter(v["country"] for v in self.sent), windows(self.sent))

    def _stream(self, brokers: Kafka) -> None:
        run = "weir run app.py:app --config weir.toml"
        self.say(
            "## The stream\n\n"
            "The topic `visits` is at `$BROKERS`. The same application goes on from the same checkpoint, on the "
            "topic. It runs below a supervisor, which starts it again when it fails, as systemd does with "
            "[weir-posts.service](service.md#8-keep-it-running). While visits come, we kill it with SIGKILL:"
        )
        blue = self.service(run)
        self._send(brokers, STREAM // 2)
        self._until(lambda: self._counted("blue") > HISTORY, "a batch of the stream", blue)
        blue.signal(signal.SIGKILL)
        self._send(brokers, STREAM // 2)
        self._until(lambda: self._counted("blue") == len(self.sent), "all visits", blue)
        self.block([f"$ {run}", *blue.lines])
        assert sum("was killed by signal 9" in line for line in blue.lines) == 1
        self.compare("blue", Counter(v["country"] for v in self.sent), windows(self.sent))
        self.say("No visit was lost and none counted twice: the script of this page compares all results.")

        self.say("## A state that is wrong\n\nSomebody writes countries small:")
        self.command("weir state ckpts/blue countries")
        self.say("The application shall write them large. Two lines of `app.py` now are:")
        self.block(
            ["# not run: two lines of app.py", *(line.strip() for line in UPPER.splitlines())], "python"
        )
        self.say(
            "What was counted is put right by a function of the old rows, in `repair.py`. The query is stopped "
            "before, by SIGTERM: it ends its batch, and exits with 0, which the supervisor takes for an answer."
        )
        self.block(["# not run: it is a file of the walk", *REPAIR.splitlines()], "python")
        self.stop(blue)
        self.file("app.py", APP.replace(PLAIN, UPPER))
        self.file("repair.py", REPAIR)
        self.command("weir state migrate ckpts/blue app.py:app countries=repair.py:countries")
        self.command("weir state ckpts/blue countries")
        self._send(brokers, STREAM // 2)
        self.command(f"{run} --check")
        blue = self.service(run)
        self._until(lambda: self._counted("blue") == len(self.sent), "all visits", blue)
        self.compare("blue", Counter(v["country"].upper() for v in self.sent), windows(self.sent))

        self.say(
            "## Another version beside it\n\n"
            "Should visits of `/help` count? A fork of the checkpoint is where another version starts, while the "
            "first one runs on. `green.py` is `app.py` with one line more:"
        )
        line = WITHOUT_HELP.splitlines()[-1].strip()
        self.block(["# not run: one line of green.py", line], "python")
        self.command("weir fork ckpts/blue ckpts/green")
        before, closed = len(self.sent), self._written("blue")  # those hours the fork does not tell again
        self.file("green.py", APP.replace(PLAIN, WITHOUT_HELP))
        self.file("green.toml", CONFIG.replace("blue", "green"))
        run_green = "weir run green.py:app --config green.toml"
        self.say("`green.toml` names the new checkpoint, and a folder of its own for the results.")
        self.command(f"{run_green} --check")
        green = self.service(run_green)
        self._send(brokers, STREAM)
        kept = self.sent[:before] + [v for v in self.sent[before:] if v["page"] != "/help"]
        self._until(lambda: self._counted("blue") == len(self.sent), "all visits", blue)
        self._until(lambda: self._counted("green") == len(kept), "all visits", green)
        self.block([f"$ {run_green}", *green.lines])

        self.say("## More servers\n\nWhile both run:")
        scaled = threading.Thread(target=self._trickle, args=(brokers, stop := threading.Event()))
        scaled.start()
        try:
            self.command("weir scale ckpts/blue --add 1 --dry-run")
            self.command("weir scale ckpts/blue --add 1")
        finally:
            stop.set()
            scaled.join()
        kept = self.sent[:before] + [v for v in self.sent[before:] if v["page"] != "/help"]
        self._until(lambda: self._counted("blue") == len(self.sent), "all visits", blue)
        self._until(lambda: self._counted("green") == len(kept), "all visits", green)

        self.say(
            "## Watched\n\n"
            "One page for both, which nginx serves below a path. The token is in `WEIR_WATCH_TOKEN`."
        )
        self._watch()

        self.say("## The end\n\nBoth are told to stop by SIGTERM:")
        self.stop(blue)
        self.stop(green)
        self.command("weir inspect ckpts/blue")
        self.compare("blue", Counter(v["country"].upper() for v in self.sent), windows(self.sent))
        late = {hour: count for hour, count in windows(kept).items() if hour not in closed}
        self.compare("green", Counter(v["country"].upper() for v in kept), Counter(late))
        self.say(
            f"{len(self.sent):,} visits were sent, {len(kept):,} of them count for green. Every country and every "
            "hour of every page is what Python's `Counter` says of them, in both."
        )

    def _watch(self) -> None:
        watch = "weir watch ckpts/ --port 8642 --public-url http://127.0.0.1:8080/tools/weir/"
        page = self.background(watch)
        assert page.stderr is not None
        self.block([f"$ {watch}", page.stderr.readline(), page.stderr.readline()])
        (self.folder / "nginx").mkdir()
        self.file("nginx/nginx.conf", PROXY)
        self.say("The heart of `nginx.conf`:")
        self.block([line.strip() for line in PROXY.splitlines()[6:8]])
        proxy = "nginx -p nginx/ -c nginx.conf -e errors"
        self.background(proxy.replace("nginx ", f"{NGINX} ", 1))
        base = "http://127.0.0.1:8080/tools/weir"
        ready = ["curl", "-sf", "-m", "5", self.real(f"{base}/health/live")]
        self._until(lambda: subprocess.run(ready, capture_output=True).returncode == 0, "nginx")
        told = json.loads(self.command(f"curl -s {base}/health/ready"))
        assert [one["ready"] for one in (told, *told["queries"].values())] == [True] * 3, told
        self.say(
            "The page is there, once the token of the link has become a cookie, and so is all that it loads:"
        )
        for path in (f"?token={TOKEN}", "static/overview.js", "query/green/"):
            told = "%{http_code} %{content_type}\\n"
            said = self.command(f"curl -sL -b cookies -c cookies -o /dev/null -w '{told}' '{base}/{path}'")
            assert said.startswith("200 "), said
        found = self.command(f"curl -s -H 'Authorization: Bearer {TOKEN}' {base}/metrics --output metrics")
        assert not found
        self.command("grep ^weir_up metrics")

    def stop(self, service: Supervisor) -> None:
        """Tell a service to stop, and put its last lines on the page."""
        seen = len(service.lines)
        service.signal(signal.SIGTERM)
        assert service.end() == 0, service.lines
        self.block(["$ kill -TERM $PID", *service.lines[seen:]])

    # ------------------------------------------------------------------ visits, and the truth of them

    def _send(self, brokers: Kafka, count: int) -> None:
        rows = visits(len(self.sent), count)
        for at in range(0, count, 100):
            for partition in range(2):
                part = rows[at : at + 100][partition::2]
                brokers.send("visits", [{**v, "time": v["time"].isoformat()} for v in part], partition)
        self.sent += rows

    def _trickle(self, brokers: Kafka, stop: threading.Event) -> None:
        while not stop.wait(0.2):
            self._send(brokers, 20)

    def _counted(self, name: str) -> int:
        return sum(row["count"] for row in self._state(name, "countries"))

    def _state(self, name: str, operator: str) -> list[dict[str, Any]]:
        storage = open_checkpoint(str(self.folder / "ckpts" / name))
        commit = CheckpointLayout(storage).commit_of()
        return [row for part in state_parts(storage, commit, operator) for row in part.to_pylist()]

    def _until(self, holds: Callable[[], bool], what: str, service: Supervisor | None = None) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end or (service is not None and service.code is not None):
                raise AssertionError(f"waited for {what}: {service and service.lines}")
            time.sleep(0.1)

    def compare(self, name: str, countries: Counter[str], hours: Counter[tuple[str, datetime]]) -> None:
        """Compare all results of a query with the truth: closed hours that it has written, open ones in its state."""
        counted = self._state(name, "countries")
        assert {row["country"]: row["count"] for row in counted} == countries, (name, counted, countries)
        # a batch is committed before it is delivered
        self._until(lambda: sum(self._hours(name).values()) == sum(hours.values()), "the delivery")
        found = self._hours(name)
        assert found == hours, (name, found - hours, hours - found)

    def _hours(self, name: str) -> Counter[tuple[str, datetime]]:
        """Return the closed hours that a query has written, and the open ones that it keeps."""
        found = self._written(name)
        for row in self._state(name, "pages"):
            found[row["page"], row["window_start"]] += row["count"]
        return found

    def _written(self, name: str) -> Counter[tuple[str, datetime]]:
        found: Counter[tuple[str, datetime]] = Counter()
        for file in (self.folder / "out" / name).rglob("*.parquet"):
            for row in pq.ParquetFile(file).read().to_pylist():
                found[row["page"], row["window_start"]] += row["count"]
        return found


def visits(first: int, count: int) -> list[dict[str, Any]]:
    """Return the visits of some numbers, one every ten seconds, each a little early or late."""
    return [
        {
            "page": PAGES[i * i % len(PAGES)],
            "country": COUNTRIES[i % len(COUNTRIES)],
            "time": START + timedelta(seconds=10 * i + i * 7919 % 600),
        }
        for i in range(first, first + count)
    ]


def windows(rows: Iterable[dict[str, Any]]) -> Counter[tuple[str, datetime]]:
    """Return how often each page was visited in each hour."""
    return Counter((v["page"], v["time"].replace(minute=0, second=0, microsecond=0)) for v in rows)


_INTRODUCTION = """\
# A walk

From an empty folder to a service that was repaired, forked, scaled and watched. This page is the log of
`python -m weir_evaluation.walkthrough docs/walkthrough.md`, which a test runs, too. It works with real processes:
Apache Kafka, `weir run` below a supervisor, nginx. Times, ports and the folder are made the same in every walk.
[State to work with](day-two.md) and [Run it as a service](service.md) explain the steps."""


def main(path: str) -> None:
    """Take the walk and write its page."""
    with tempfile.TemporaryDirectory(prefix="weir-walk-") as folder:
        Path(path).write_text(Walk(Path(folder)).take())


if __name__ == "__main__":
    main(sys.argv[1])
