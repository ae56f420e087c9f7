"""Rules that no linter knows: who may ask for a class, and how large things may grow.

Who may import whom is in pyproject.toml and is checked by ``make check``.
"""

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
import weir.operators
import weir.routing
from weir.operators.base import Operator
from weir.operators.instance import Instance
from weir.routing.base import Grouping, Router

SOURCE = Path(weir.__file__).parent
PACKAGES_THAT_MAY_ASK = ("routing", "operators")
LONGEST_FILE = 700
LONGEST_BARE_FUNCTION = 80
ALL_LINES = 44_810


# words of this project's own, for which the field has others: see the glossary of docs/architecture.md
WORDS = """
    Resident LiveServer Group Word News Standing Gatherer Ears Job Mover Patience Ending ending Status
    Outcome outcome_of continuity compatibility Whereabouts whereabouts Intake intake Feed opening Sightings sightings
    Company company peeking foresee foretell foretold alarms NextAlarms Homes Bell Ringing Depot depot Parcels
    ParcelLost reads_files as_they_come works_at_end born h1 h2 house House rooms Room life Life mend mended
"""
RETIRED = set(WORDS.split())


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def answering_classes() -> set[str]:
    """Return the names of all groupings, routers, operators and instances; their bases are not among them."""
    for package in (weir.routing, weir.operators):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    names: set[str] = set()
    unseen: list[type] = [Grouping, Router, Operator, Instance]
    while unseen:
        for kind in unseen.pop().__subclasses__():
            if kind.__module__.startswith(("weir.routing.", "weir.operators.")):
                names.add(kind.__name__)
                unseen.append(kind)
    return names


def class_questions(code: str, classes: set[str]) -> list[int]:
    """Return the lines that ask an object for one of these classes."""
    tree = ast.parse(code)
    imported: dict[str, str] = {}  # name in this file → where it is from
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}

    def is_one(part: ast.AST) -> bool:
        if not isinstance(part, ast.Name | ast.Attribute):
            return False
        first, *others = ast.unparse(part).split(".")
        origin = imported.get(first, f"weir.{first}")
        return origin.split(".")[0] == "weir" and ".".join([origin, *others]).rsplit(".", 1)[-1] in classes

    def mentions(node: ast.AST) -> bool:
        return any(is_one(part) for part in ast.walk(node))

    return sorted(node.lineno for node in ast.walk(tree) for asked in _asked(node) if mentions(asked))


def _asked(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the classes that an expression compares with: isinstance, issubclass, ``type(x) is``, ``case X():``."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            yield kinds
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=kinds):
            yield from kinds
        case ast.Match(cases=cases):
            for case in cases:
                yield from (p.cls for p in ast.walk(case.pattern) if isinstance(p, ast.MatchClass))


def bare_long_functions(code: str, longest: int = LONGEST_BARE_FUNCTION) -> list[tuple[int, str]]:
    """Return line and name of functions that are longer than this and have no docstring."""
    return [
        (node.lineno, node.name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > longest
        and ast.get_docstring(node) is None
    ]


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


# ---------------------------------------------------------------------- the rules


def test_nobody_asks_for_a_concrete_grouping_router_or_operator() -> None:
    classes = answering_classes()
    asked = [
        f"{file.relative_to(SOURCE)}:{line}"
        for file in files()
        if file.relative_to(SOURCE).parts[0] not in PACKAGES_THAT_MAY_ASK
        for line in class_questions(file.read_text(), classes)
    ]
    assert asked == [], "let the object answer: add a method to Grouping, Router, Operator or Instance"


def test_no_file_is_too_long() -> None:
    long = {str(file.relative_to(SOURCE)): n for file in files() if (n := lines(file)) > LONGEST_FILE}
    assert long == {}, f"split what has more than {LONGEST_FILE} lines"


def test_no_long_function_goes_without_a_docstring() -> None:
    bare = [
        f"{file.relative_to(SOURCE)}:{line} {name}"
        for file in files()
        for line, name in bare_long_functions(file.read_text())
    ]
    assert bare == []


def test_the_product_stays_small() -> None:
    total = sum(map(lines, files()))
    assert total <= ALL_LINES


# ---------------------------------------------------------------------- the checks themselves


def test_the_classes_are_those_of_both_packages() -> None:
    classes = answering_classes()
    assert {"Hash", "Table", "PartialKey", "Weighted", "WeightedRouter"} <= classes
    assert {"Count", "Aggregate", "Process", "Map", "Read", "AggregateInstance"} <= classes
    assert not classes & {"Grouping", "Router", "Operator", "Instance"}


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(grouping, Hash)",
        "import weir; isinstance(grouping, weir.routing.Hash)",
        "isinstance(grouping, (Shuffle, Hash))",
        "isinstance(grouping, Shuffle | Hash)",
        "issubclass(kind, Hash)",
        "type(grouping) is Hash",
        "type(grouping) in (Hash, Shuffle)",
        "from weir.routing.hash import Hash as ByHash; isinstance(grouping, ByHash)",
        "match grouping:\n    case Hash():\n        pass",
    ],
)
def test_a_question_for_a_class_is_seen(code: str) -> None:
    assert class_questions(f"\n{code}", {"Hash"}) == [2]


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(grouping, Grouping)",
        "isinstance(rows, dict)",
        "Hash()",
        "grouping.splits_keys",
        "x == Hash()",
        "import hashes as h; isinstance(x, h.Hash)",
        "from hashes import Hash; isinstance(x, Hash)",
    ],
)
def test_other_code_is_left_alone(code: str) -> None:
    assert class_questions(code, {"Hash"}) == []


def test_a_long_function_without_a_docstring_is_seen() -> None:
    body = "    x = 1\n" * 5
    assert bare_long_functions(f"def f():\n{body}", longest=5) == [(1, "f")]
    assert bare_long_functions(f"def f():\n{body}", longest=6) == []
    assert bare_long_functions(f'class A:\n    def f(self):\n        """Say."""\n{body}', longest=3) == []


def retired(code: str) -> set[str]:
    """Return the retired words that code uses as names."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return RETIRED & {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_words_that_were_retired_do_not_come_back(path):
    assert retired(path.read_text()) | (RETIRED & {path.stem}) == set()


def test_a_retired_word_is_found_in_names_but_not_in_prose():
    assert retired("self.intake = 1  # the company of keys") == {"intake"}
