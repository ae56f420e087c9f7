"""What a figure was made by: a hash over its script and every module of this project that it imports.

Comments, docstrings and layout don't count, so that only what may change a result makes it old.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOTS = (HERE, HERE.parent / "src", HERE.parent.parent / "src")


def fingerprint(script: Path) -> str:
    """Return the hash of a script and of what it imports, however indirectly."""
    seen: dict[Path, str] = {}
    todo = [script.resolve()]
    while todo:
        file = todo.pop()
        if file not in seen:
            tree = ast.parse(file.read_text())
            todo += [found for name in _imported(tree) if (found := _file(name)) is not None]
            seen[file] = ast.dump(_bare(tree))
    digest = hashlib.sha256()
    for file in sorted(seen):
        digest.update(f"{file.name}\n{seen[file]}\n".encode())
    return digest.hexdigest()[:16]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(name: str) -> Path | None:
    for root in ROOTS:
        path = root.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.resolve()
    return None


def _bare(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        text = first.value if isinstance(first, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            del node.body[0]  # type: ignore[attr-defined]
    return tree
