"""Schema registries: the schema that a message was written with, by the number in front of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.errors import SourceError, SourceUnavailable, TopologyError
from weir.extras import require

FRAME = 5  # bytes before a payload: a zero, and the schema's number
RETRY_SECONDS = 60.0  # seconds for which a task waits for a registry
PAUSE = 0.5


@dataclass(frozen=True)
class Registry:
    """A registry that speaks Confluent's protocol. ``settings`` are those of confluent-kafka's own client.

    What it has answered is kept for the life of the process: a number means one schema for ever.
    """

    settings: Mapping[str, Any]

    @staticmethod
    def of(given: str | Mapping[str, Any] | None) -> Registry | None:
        """Return the registry that a user names by its URL, or by settings."""
        if given is None:
            return None
        settings = {"url": given} if isinstance(given, str) else dict(given)
        if not isinstance(settings.get("url"), str):
            raise TopologyError(f'registry={given!r}: expected its URL, or settings with "url"')
        require("confluent_kafka.schema_registry", "registry")
        return Registry(settings)

    def schema(self, number: int) -> tuple[str, dict[str, str]]:
        """Return a schema's text, and those that it imports, by name.

        A registry that is away is waited for; then it is a SourceUnavailable.
        """
        ends = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                found: tuple[str, dict[str, str]] = self._once(
                    ("schema", number), lambda client: _with_imports(client, number)
                )
                return found
            except SourceUnavailable:
                if time.monotonic() > ends:
                    raise
                time.sleep(PAUSE)

    def register(self, subject: str, text: str, kind: str) -> int:
        """Return the number of a schema under a subject, which is new if the subject has no such schema yet."""

        def ask(client: Any) -> int:
            from confluent_kafka.schema_registry import Schema

            return int(client.register_schema(subject, Schema(text, kind)))

        return int(self._once((subject, text, kind), ask))

    def _once(self, question: tuple[Any, ...], ask: Any) -> Any:
        """Ask, unless the answer is known."""
        known = _answers.setdefault(repr(sorted(self.settings.items())), {})
        if question not in known:
            from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

            clients = _clients.__dict__
            key = repr(sorted(self.settings.items()))
            if key not in clients:
                clients[key] = SchemaRegistryClient(dict(self.settings))
            try:
                known[question] = ask(clients[key])
            except SchemaRegistryError as error:
                status = int(error.http_status_code)
                if status == 404:
                    raise ValueError(f"the registry has no schema {question[-1]}") from error
                kind = SourceUnavailable if status >= 500 or status in (408, 429) else SourceError
                raise kind(f"registry {self.settings['url']}: {error}") from error
            except Exception as error:  # whatever its HTTP client raises
                raise SourceUnavailable(f"registry {self.settings['url']}: {error!r}") from error
        return known[question]


def _with_imports(client: Any, number: int) -> tuple[str, dict[str, str]]:
    schema, imports = client.get_schema(number), {}
    unseen = list(schema.references or ())
    while unseen:
        reference = unseen.pop()
        if reference.name not in imports:
            found = client.get_version(reference.subject, reference.version).schema
            imports[reference.name] = str(found.schema_str)
            unseen += found.references or ()
    return str(schema.schema_str), imports


_answers: dict[str, dict[tuple[Any, ...], Any]] = {}
_clients = threading.local()


def json_schema(schema: pa.Schema) -> str:
    """Return the JSON Schema of some columns, all of which may be null.

    >>> json_schema(pa.schema([("place", pa.string()), ("n", pa.list_(pa.int64()))]))[:66]
    '{"type": "object", "properties": {"place": {"type": ["string", "nu'
    """
    return json.dumps({"type": "object", "properties": {f.name: _spelt(f.type) for f in schema}})


def _spelt(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"type": ["array", "null"], "items": _spelt(kind.value_type)}
    if pa.types.is_struct(kind):
        return {"type": ["object", "null"], "properties": {f.name: _spelt(f.type) for f in kind}}
    if pa.types.is_boolean(kind):
        name = "boolean"
    elif pa.types.is_integer(kind):
        name = "integer"
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        name = "number"
    else:
        name = "object" if pa.types.is_map(kind) else "string"
    return {"type": [name, "null"]}
