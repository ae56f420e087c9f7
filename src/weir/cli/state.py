"""``weir state``: what an operator keeps, as any retained batch left it; read without Spark."""

from __future__ import annotations

import argparse
import ast
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from weir.cli.drawing import number, plural, show_table, table
from weir.engine.checkpoint import COMMITS, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.inspect.inspection import (
    described_operator,
    open_checkpoint,
    readable_schema,
    state_parts,
)
from weir.errors import ParameterError, did_you_mean

SHOWN = 20  # rows, unless others are asked for
_COMPARE: dict[type, Any] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir state``."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the folder or URI that the query was started with")
    add(
        "operator",
        metavar="OPERATOR",
        nargs="?",
        help="whose state; without it, say which operators there are",
    )
    add("--key", nargs="+", metavar="VALUE", help="the state of one key: a value for each of its columns")
    add("--where", metavar="CONDITION", help="""rows for which this holds: "count > 5 and place == 'FR'" """)
    add(
        "--limit",
        type=int,
        metavar="N",
        help=f"rows at most (default {SHOWN}; all with --json and --parquet)",
    )
    add("--batch", type=int, metavar="B", help="the state as this batch left it (default: the last)")
    add("--parquet", metavar="FILE", help="write the rows to a file instead")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return the state that is asked for, or what there is."""
    layout = CheckpointLayout(open_checkpoint(args.checkpoint))
    commit = layout.commit_of(args.batch)
    if args.operator is None:
        batches = [layout.batch_of(name) for name in layout.documents(COMMITS)]
        return {"batch": commit.batch, "batches": sorted({*batches}), "operators": _operators(commit)}
    limit = args.limit
    if limit is None and not args.json and args.parquet is None:
        limit = SHOWN
    schema = readable_schema(described_operator(commit, args.operator))
    condition = None if args.where is None else parsed(args.where, schema)
    parts = state_parts(layout.storage, commit, args.operator, args.key)
    chosen = (part if condition is None else part.filter(condition) for part in parts)
    about = {"operator": args.operator, "batch": commit.batch, "columns": schema.names}
    if args.parquet is not None:
        return {**about, "file": args.parquet, "rows": _write(args.parquet, _first(chosen, limit), schema)}
    found = pa.concat_tables([schema.empty_table(), *_first(chosen, None if limit is None else limit + 1)])
    more = limit is not None and found.num_rows > limit
    rows = found.to_pylist()[:limit]
    return {**about, "rows": msgspec.json.decode(msgspec.json.encode(rows)), "more": more}


def show(result: dict[str, Any], console: Console) -> None:
    """Print rows, or what there is."""
    if "operators" in result:
        drawn = table(f"state after batch {result['batch']}", "operator", "kind", "key", ">keys")
        for name, about in result["operators"].items():
            drawn.add_row(name, about["kind"], ", ".join(about["key"]), number(about["keys"]))
        show_table(console, drawn)
        console.print(f"batches that are retained: {', '.join(map(str, result['batches']))}", highlight=False)
    elif "file" in result:
        console.print(f"{plural(result['rows'], 'row', 'rows')} in {result['file']}", highlight=False)
    else:
        drawn = table(f"{result['operator']} after batch {result['batch']}", *result["columns"])
        for row in result["rows"]:
            drawn.add_row(*(Text(_shown(row[column])) for column in result["columns"]))
        show_table(console, drawn)
        if result["more"]:
            console.print(f"the first {len(result['rows'])} rows; --limit shows more", highlight=False)


def parsed(condition: str, schema: pa.Schema) -> pc.Expression:
    """Return a condition over columns, written as in Python, as one that Arrow evaluates.

    >>> rows = pa.table({"place": ["FR", "US", None], "n": [3, 9, 1]})
    >>> rows.filter(parsed("n > 2 and place in ['US', 'CH']", rows.schema)).to_pylist()
    [{'place': 'US', 'n': 9}]
    >>> rows.filter(parsed("place is None", rows.schema)).to_pylist()
    [{'place': None, 'n': 1}]
    """
    try:
        expression = _condition(ast.parse(condition.strip(), mode="eval").body, schema)
        schema.empty_table().filter(expression)  # types that cannot be compared are refused here
    except (SyntaxError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise ParameterError(
            f"--where {condition!r}: {error}. Write it as \"count > 5 and place == 'FR'\""
        ) from None
    return expression


def _condition(node: ast.expr, schema: pa.Schema) -> Any:
    if isinstance(node, ast.BoolOp):
        combine = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
        whole = _condition(node.values[0], schema)
        for one in node.values[1:]:
            whole = combine(whole, _condition(one, schema))
        return whole
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return pc.invert(_condition(node.operand, schema))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(node.left, node.ops[0], node.comparators[0], schema)
    if isinstance(node, ast.Name):
        return _column(node.id, schema)
    raise SyntaxError("only comparisons of columns with values, and, or, not")


def _comparison(left: ast.expr, how: ast.cmpop, right: ast.expr, schema: pa.Schema) -> Any:
    one = _operand(left, schema)
    if isinstance(how, ast.Is | ast.IsNot):
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise SyntaxError("is and is not go with None")
        return pc.is_null(one) if isinstance(how, ast.Is) else pc.is_valid(one)
    kind = schema.field(left.id).type if isinstance(left, ast.Name) else None
    if isinstance(how, ast.In | ast.NotIn):
        inside = one.isin(pa.array(ast.literal_eval(right), kind))
        return inside if isinstance(how, ast.In) else pc.invert(inside)
    other = _operand(right, schema, kind)
    if isinstance(left, ast.Constant) and isinstance(right, ast.Name):
        one = _operand(left, schema, schema.field(right.id).type)
    return _COMPARE[type(how)](one, other)


def _operand(node: ast.expr, schema: pa.Schema, kind: pa.DataType | None = None) -> Any:
    if isinstance(node, ast.Name):
        return _column(node.id, schema)
    value = ast.literal_eval(node)
    with contextlib.suppress(pa.ArrowException):  # a time or a decimal is written as a text
        if kind is not None and isinstance(value, str):
            value = pa.scalar(value).cast(kind)
    return pc.scalar(value)


def _column(name: str, schema: pa.Schema) -> pc.Expression:
    if name not in schema.names:
        raise ParameterError(f"--where: no column {name!r}; {did_you_mean(name, schema.names)}")
    return pc.field(name)


def _operators(commit: Commit) -> dict[str, Any]:
    return {
        name: {"kind": about.operator["kind"], "key": about.key_names, "keys": commit.keys.get(name)}
        for name, about in commit.signature.operators.items()
    }


def _first(parts: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """Yield parts until there are so many rows."""
    left = limit
    for part in parts:
        yield part if left is None else part.slice(0, left)
        left = None if left is None else max(0, left - part.num_rows)
        if left == 0:
            return


def _write(path: str, parts: Iterator[pa.Table], schema: pa.Schema) -> int:
    """Write rows as Parquet, one server's after the other's, and return how many."""
    rows = 0
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for part in parts:
                writer.write_table(part.cast(schema))
                rows += part.num_rows
    except OSError as error:
        raise ParameterError(f"--parquet {path}: cannot be written ({error})") from None
    return rows


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
