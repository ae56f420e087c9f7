"""The documentation does what it says: its Python runs, its commands and options exist, its paths lead somewhere.

The Python blocks of a page run from top to bottom in one namespace, as in one program. What they may rely on without
saying so is in :func:`stand_ins`. Where an application has schemas as sources, ``start`` means ``weir.testing.start``
and a batch of made-up rows; one on DataFrames runs on the Spark session of the tests, and ``start`` returns when its
first batch is committed. Nobody awaits the end of a stream that has none. An application that a block leaves unstarted
is started behind it. Relative paths that end in a slash, or go through one, mean a folder of the test.

A block that begins with ``# not run:`` says there why it can't run here, and only has to compile.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import doctest
import re
import runpy
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

import weir
import weir.sinks
import weir.testing
from truth import eventually
from weir.cli.main import _parser
from weir.flow import parts_of

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
NOT_RUN = "# not run: "


@dataclass(frozen=True)
class Block:
    """What stands between two fences of a page."""

    page: Path
    line: int
    kind: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, *kinds: str) -> list[Block]:
    """Return a page's blocks of some kinds; of all if none is named."""
    text = page.read_text()
    found = re.finditer(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    every = [Block(page, text.count("\n", 0, part.start()) + 1, part[1].strip(), part[2]) for part in found]
    return [block for block in every if not kinds or block.kind in kinds]


# ---------------------------------------------------------------------- Python


def made_up(schema: pa.Schema) -> pa.Table:
    """Return rows with values of every column's type."""

    def value(field: pa.Field, row: int) -> Any:
        if pa.types.is_timestamp(field.type):
            return NOON + dt.timedelta(seconds=row)
        return f"{field.name} {row % 6}" if pa.types.is_string(field.type) else row

    return pa.table([pa.array([value(f, i) for i in range(60)], f.type) for f in schema], schema)


def stand_ins(folder: Path) -> dict[str, Any]:
    """Return the names that pages use without defining them."""
    columns = "place string, topic string, text string, n long, time timestamp"
    rows = made_up(weir.source(columns).ends[0].schema)
    (folder / "posts" / "part=0").mkdir(parents=True)
    pq.write_table(rows, folder / "posts" / "part=0" / "0.parquet")
    pq.write_table(rows, folder / "posts.parquet")
    (folder / "ads").mkdir()
    pq.write_table(
        rows.select(["topic", "time"]).rename_columns(["topic", "shown"]), folder / "ads" / "0.parquet"
    )
    topology = folder / "topology.sh"
    topology.write_text('#!/bin/sh\nfor host in "$@"; do echo /rack-1; done\n')
    topology.chmod(0o755)

    def save(rows: Any, batch: int) -> None:
        """Take what a sink gets: a DataFrame, or without Spark an Arrow table."""
        assert len(rows.collect() if isinstance(rows, DataFrame) else rows) <= 60

    return {
        "__name__": "__main__",  # what is defined here is pickled by value, as in a program
        "weir": weir,
        "posts": columns,
        "web_posts": columns,
        "mobile_posts": columns,
        "readings": "sensor string, value double, time timestamp",
        "save": save,
        "save_topics": save,
    }


class Runs:
    """Starts the applications of a page, and stops them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Any] = []
        self.applications: list[Any] = []
        on_spark = weir.Application.start

        def start(app: weir.Application, checkpoint: str, options: Any = None, **settings: Any) -> Any:
            if not parts_of(app).frames:
                return self.here(app, **settings)
            query = on_spark(app, checkpoint, options, **settings)
            self.started.append(query)
            if settings.get("trigger") != {"availableNow": True}:
                monkeypatch.setattr(query, "await_termination", lambda: None)
            eventually(lambda: query.progress or query.exception(), seconds=300)
            if (failure := query.exception()) is not None:
                raise failure
            return query

        monkeypatch.setattr(weir.Application, "start", start)

    def here(self, app: weir.Application, **settings: Any) -> weir.testing.LocalQuery:
        query = weir.testing.start(app, hosts=["h1", "h1", "h2", "h3", "h3", "h3"], **settings)
        parts = parts_of(app)
        query.feed(
            {name: made_up(schema) for name, schema in parts.schemas.items() if name not in parts.feeds}
        )
        self.started.append(query)
        self.applications.append(app)
        return query

    def leave_nothing_unstarted(self, names: dict[str, Any]) -> None:
        """Start the ``app`` of a block, to its ``sink``, unless the block has; on Spark, only check it."""
        app = names.get("app")
        if self.started or not isinstance(app, weir.Stream | weir.Application):
            return
        app = app if isinstance(app, weir.Application) else weir.Application(app)
        if parts_of(app).frames:
            parts_of(app).topology(2)
            return
        also = {name: names[name] for name in ("sink", "dead_letters") if name in names}
        self.here(app, servers=2, **{**names.get("options", {}), **also})

    def stop(self) -> None:
        for query in self.started:
            query.stop()
        self.started.clear()
        session = SparkSession.getActiveSession()
        for query in session.streams.active if session else ():  # those that Weir has no part in
            query.processAllAvailable()
            query.stop()


def run(page: Path, folder: Path, names: dict[str, Any], outside: dict[str, str], runs: Runs) -> None:
    """Run the Python blocks of a page."""
    for number, block in enumerate(blocks(page, "python")):
        code = block.code
        for name, address in outside.items():
            code = code.replace(name, address)
        code = re.sub(r'(?<=")([a-z][\w-]*/[\w=./-]*)(?=")', rf"{folder}/\1", code)
        # line numbers of tracebacks are those of the page
        program = compile("\n" * block.line + code, str(page), "exec", dont_inherit=True)
        if code.startswith(NOT_RUN):
            continue
        for name in ("sink", "dead_letters", "options"):
            names.pop(name, None)
        before = names.get("app")
        names["checkpoint"] = f"{folder}/checkpoint-{number}"
        if re.search(r"\bquery\.", code) and "query =" not in code and " as query" not in code:
            names["query"] = runs.here(runs.applications[-1], servers=4, routing=weir.Locality())
        exec(program, names)
        if names.get("app") is not before:
            runs.leave_nothing_unstarted(names)
        CHECKS.get(page.name, lambda *_: None)(code, names, runs, outside)
        runs.stop()
        for written in ("out", "dead", "ckpt"):
            shutil.rmtree(folder / written, ignore_errors=True)


def check_deliveries(code: str, names: dict[str, Any], runs: Runs, outside: dict[str, Any]) -> None:
    """The examples of docs/sources-and-sinks.md deliver what the topic has."""
    (query,) = runs.started
    if "debezium" in code:
        assert query.progress.rows == 3
        with psycopg.connect(outside["postgresql://weir@db/shop"]) as database:
            assert database.execute("SELECT * FROM people_copy").fetchall() == [(2, "Bob")]
        return
    assert query.progress.rows == 3
    assert query.state("places").num_rows == 2
    if "Postgres(" in code:
        with psycopg.connect(outside["postgresql://weir@db/shop"]) as database:
            assert sorted(database.execute("SELECT place, count FROM places")) == [("FR", 2), ("US", 1)]
    if "Totals" in code:
        assert list(names["sink"].batches.values()) == [2]


TOPICS = {"posts": 2, "places": 1, "shop.people": 1}  # and how many partitions they have
CHECKS = {"sources-and-sinks.md": check_deliveries}


@pytest.fixture
def outside(request: pytest.FixtureRequest, page: Path) -> Iterator[dict[str, str]]:
    """What addresses on the page stand for, if it has any."""
    addresses, text = {}, page.read_text()
    if "broker:9092" in text:
        brokers = request.getfixturevalue("brokers")
        addresses["broker:9092"] = brokers.servers
        for topic, partitions in TOPICS.items():
            brokers.create(topic, partitions)
        rows = [{"place": "FR", "topic": "x", "n": 1}, {"place": "US", "topic": "y", "n": 2}]
        brokers.send("posts", rows, 0)
        brokers.send("posts", [{"place": "FR", "topic": "y", "n": 3}], 1)
        people = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]
        changes = [{"op": "c", "before": None, "after": person} for person in people]
        brokers.send("shop.people", [*changes, {"op": "d", "before": {"id": 1}, "after": None}, None])
    if "postgresql://" in text:
        addresses["postgresql://weir@db/shop"] = request.getfixturevalue("postgres")
    yield addresses
    if "broker:9092" in text and brokers.real:  # the next page finds them anew
        for topic in TOPICS:
            brokers.delete(topic)


WITH_PYTHON = [p for p in PAGES if p.name != "README.md" and blocks(p, "python")]


@pytest.mark.usefixtures("few_starts")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_every_python_block_runs(page, outside, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = Runs(monkeypatch)
    names = stand_ins(tmp_path)
    if any(re.search(r"\bspark\b", block.code) for block in blocks(page, "python")):
        names["spark"] = request.getfixturevalue("spark")
    try:
        run(page, tmp_path, names, outside, runs)
    finally:
        runs.stop()
    if page.name == "sources-and-sinks.md":
        brokers = request.getfixturevalue("brokers")
        assert sorted(row["count"] for row in brokers.read("places")) == [1, 2]


def test_the_example_of_the_readme_is_the_one_in_examples():
    """It is run where only weir is installed: see evaluation/test_wheels.py."""
    (example,) = blocks(ROOT / "README.md", "python")
    assert example.code == (ROOT / "examples" / "trending.py").read_text()


def test_there_is_an_example_for_each_source_and_sink():
    text = "".join(block.code for block in blocks(DOCS / "sources-and-sinks.md", "python"))
    for name in ("weir.kafka", *(f"weir.sinks.{s}" for s in weir.sinks.__all__ if s != "Delivery")):
        assert name in text


def test_what_is_not_run_says_why():
    for page in PAGES:
        for block in blocks(page, "python"):
            if "not run" in block.code:
                assert re.match(NOT_RUN + r"\w+ \w+", block.code), block


def test_every_block_is_of_a_kind_that_is_checked():
    for page in PAGES:
        for block in blocks(page):
            assert block.kind in ("", "python", "yaml"), f"{block}: what is a block of {block.kind!r}?"
            if block.kind == "yaml":
                assert yaml.safe_load(block.code), block
            elif not block.kind:
                assert not re.search(r"\bweir\.\w+\(|\bapp\.\w+\(", block.code), f"{block}: call it python"


def test_docstrings_become_pages():
    markdown = runpy.run_path(str(ROOT / "scripts" / "docstrings.py"))["markdown"]
    (examples,) = doctest.DocTestFinder().find(markdown, "markdown", globs={"markdown": markdown})
    assert doctest.DocTestRunner().run(examples) == (0, 2)


# ---------------------------------------------------------------------- commands


def commands(page: Path) -> Iterator[tuple[str, list[str], bool]]:
    """Yield where a page has a ``weir`` command, its words, and whether it is whole: in a block, not in a sentence."""
    for block in blocks(page, ""):
        for line in block.code.replace("\\\n", " ").splitlines():
            for part in re.split(r"; |&&", line.split("  ")[0]):
                words = shlex.split(part, comments=True)
                if words and words[0] == "weir":
                    yield str(block), words[1:], True
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for part in re.finditer(r"`(weir [a-z][^`]*)`", text):
        yield page.name, shlex.split(part[1])[1:], False


def subparser(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that the words begin with."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and not words[0].startswith("-"):
            assert words[0] in action.choices, f"weir has no {words[0]!r}: {[*action.choices]}"
            return subparser(action.choices[words[0]], words[1:])
    return parser


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_option_exists(page, capsys):
    for where, given, whole in commands(page):
        words = [word for word in given if word not in ("…", "...")]
        parser = _parser(words)
        own = words[: words.index("--")] if "--" in words else words
        known = subparser(parser, own)._option_string_actions
        unknown = [word for word in own if word.startswith("--") and word.split("=")[0] not in known]
        assert unknown == [], f"{where}: weir {' '.join(words)}"
        if whole:
            try:
                parser.parse_args(words)
            except SystemExit:
                pytest.fail(f"{where}: weir {' '.join(words)}: {capsys.readouterr().err.splitlines()[-1]}")


def test_extras_and_targets_that_pages_name_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        text = page.read_text()
        for names in re.findall(r"weir-streams\[([\w,-]+)\]", text):
            assert {*names.split(",")} <= {*extras}, page.name
        code = "".join(block.code for block in blocks(page))
        named = re.findall(r"^make (\w+)", code, re.MULTILINE) + re.findall(r"`make (\w+)", text)
        assert {*named} <= {*targets}, page.name


def test_nothing_tells_users_to_install_what_is_not_ours():
    """On PyPI, ``weir`` is another project: hints to install it would install a stranger's code."""
    texts = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "evaluation/pyproject.toml"]
    for folder in ("src", "docs", "examples", "evaluation", ".github"):
        texts += [
            p
            for p in (ROOT / folder).rglob("*")
            if p.suffix in (".py", ".md", ".toml", ".yml", ".html", ".js")
        ]
    bare = re.compile(r"(?<![\w./-])weir\[[a-z]|pip install (?:-\S+ )*['\"]?weir(?![\w-])|['\"]weir[=<>~]")
    found = {str(p.relative_to(ROOT)): bare.findall(p.read_text()) for p in texts}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_files_that_pages_name_exist():
    """MkDocs checks the links between pages; these are names of files in the text, and links outside the site."""
    for page in PAGES:
        text = page.read_text()
        named = re.findall(r"`((?:tests|examples|evaluation/papers|docs|scripts)/[\w./-]+)(?!\*)\b", text)
        linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
        missing = [name for name in named if not (ROOT / name).exists()]
        missing += [link for link in linked if not (page.parent / link).exists()]
        assert missing == [], page.name


def test_the_architecture_fits_into_one_reading():
    lines = (DOCS / "architecture.md").read_text().splitlines()
    assert len(lines) <= 250
    assert [line for line in lines if len(line) > 110 and not line.startswith(("|", "!"))] == []


# ---------------------------------------------------------------------- prose

LONGEST_SENTENCE = 35  # words


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page's prose, with the line of their paragraph; no code, tables, headings or images."""
    text = re.sub(
        r"^( *)```.*?^\1```$", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.S | re.M
    )
    paragraph: list[str] = []
    begin = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        skip = not stripped or stripped.startswith(("|", "#", "<", "!"))
        item = re.match(r"([-*]|\d+\.) ", stripped)
        if (skip or item) and paragraph:
            for sentence in re.split(r"(?<=[.!?])[)*\"”’_]*\s+(?=[^a-z])", plain(" ".join(paragraph))):
                yield begin, sentence
            paragraph = []
        if not skip:
            begin = begin if paragraph else number
            paragraph.append(stripped[item.end() :] if item else stripped)


def plain(text: str) -> str:
    """Return Markdown as it reads: a link is its text, and code is one word however long it is."""
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(r"`[^`]*`", "Code", text)


@pytest.mark.parametrize("page", [*PAGES, *sorted(DOCS.glob("decisions/*.md"))], ids=lambda page: page.name)
def test_no_sentence_is_too_long(page):
    counted = [(line, len(re.findall(r"\w[\w.,'’%-]*", s)), s) for line, s in sentences(page)]
    long = [f"{page.name}:{line}: {n} words: {s}" for line, n, s in counted if n > LONGEST_SENTENCE]
    assert long == []


def test_sentences_are_told_apart(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n\nOne [link](a.md#b). Two, as in\n`f(x. y)`. **Three.** Four?\n\n- five\n- six. Seven\n\n"
        "```\nno. sentence\n```\n\n| no | table |\n"
    )
    found = [s for _, s in sentences(page)]
    assert found == ["One link.", "Two, as in Code.", "**Three.", "Four?", "five", "six.", "Seven"]


def test_what_the_architecture_names_exists():
    """Functions as ``Class.function``, files by their path below the package."""
    text, package = (DOCS / "architecture.md").read_text(), ROOT / "src" / "weir"
    members: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                members.setdefault(node.name, set()).update(names)
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", text)
    assert len(named) > 20
    assert [f"{kind}.{name}" for kind, name in named if name not in members.get(kind, ())] == []
    paths = re.findall(r"`([a-z_]+/[\w/]*\w\.py)`", text)
    assert [path for path in paths if not ((package / path).exists() or (ROOT / path).exists())] == []
