"""Asking the running cluster where servers are, and what the ways between them cost."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from weir.engine.exchange import wire
from weir.engine.task.server import host_name
from weir.network.distance import Distance, Place
from weir.network.probe import (
    Link,
    address_towards,
    far_pairs,
    listen,
    measured_profile,
    probe,
    probe_loopback,
    probe_memory,
    probe_serialisation,
    serve,
)
from weir.network.profile import Profile
from weir.spark.server_affinity import ServerAffinity
from weir.spark.stages import sending
from weir.state.storage import Storage

BLOB = 1 << 20
ANSWER = "server int, payload binary"
MEET_SECONDS = 10.0  # how long two tasks wait for each other


def locate(affinity: ServerAffinity) -> dict[int, tuple[str, str]]:
    """Host and executor of each server, by a task of its own."""

    def where(server: int) -> Any:
        return host_name(), f"{host_name()}:{os.getppid()}"

    return {server: tuple(said) for server, said in _ask(affinity, where).items()}


def measure(
    affinity: ServerAffinity, places: list[Place], storage: Storage
) -> tuple[Profile, dict[str, Any]]:
    """Probe every distance that there is; return the profile, and what was measured or why it was not.

    Takes a few seconds, and at most ``MEET_SECONDS`` more per distance beyond the host if tasks can't meet.
    """
    links: dict[Distance, Link] = {}
    notes: dict[str, Any] = {}

    def near(server: int) -> Any:
        if server:
            return None
        return probe_memory(), probe_loopback(), probe_serialisation()

    memory, loopback, packing = _ask(affinity, near)[0]
    serialise = packing + exchange_cost(affinity)
    links[Distance.PROCESS], links[Distance.NODE] = Link(*memory), Link(*loopback)
    for far, pair in far_pairs(places).items():
        hosts = places[pair[0]].host, places[pair[1]].host
        answer = _ask(affinity, _meeting(storage, f"probe/{uuid.uuid4().hex}", pair, hosts))[pair[1]]
        if isinstance(answer, str):
            notes[far.name.lower()] = {"measured": False, "why": answer}
        else:
            links[far] = Link(*answer)
    storage.delete_folder("probe")
    for far, link in links.items():
        notes[far.name.lower()] = {"measured": True, **link._asdict()}
    for far in Distance:
        notes.setdefault(far.name.lower(), {"measured": False, "why": "no two servers are so far apart"})
    notes["serialise_s_per_byte"] = serialise
    return measured_profile(links, serialise), notes


def exchange_cost(affinity: ServerAffinity, size: int = 8 << 20) -> float:
    """Return the seconds per byte that an exchange takes beyond the network; measured with ``size`` bytes per server.

    Whatever leaves a server is written by one task and read by another, with the JVM between them, also on one
    host. The cost of an exchange without anything in it is taken off. All servers send at the same time, as in a batch.
    """
    slots = affinity.slots

    def send(blobs: int) -> Any:
        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            outbox = wire.Outbox(slots)
            for batch in batches:
                for server in batch.column("server").to_pylist():
                    for _ in range(blobs):
                        outbox.put((server + 1) % len(slots), wire.DATA, 0, bytes(BLOB))
            yield from outbox.flush()

        return task

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        got = sum(len(p) for batch in batches for p in wire.payloads(batch))
        yield pa.RecordBatch.from_arrays([pa.array([got], pa.int64())], names=["bytes"])

    def seconds(blobs: int) -> float:
        times = []
        for _ in range(2):
            began = time.perf_counter()
            sent = sending(affinity.each(), send(blobs))
            affinity.exchange(sent, "wire").mapInArrow(take, "bytes bigint").collect()
            times.append(time.perf_counter() - began)
        return min(times)

    empty = seconds(0)
    return max(0.0, seconds(size // BLOB) - empty) / size


def _meeting(storage: Storage, name: str, pair: tuple[int, int], hosts: tuple[str, str]) -> Any:
    """One server listens and says where in the checkpoint, which both can reach; the other one probes.

    It listens only on the address that the other one sees, and only to who knows a secret that travels with the tasks.
    """
    secret = secrets.token_bytes(32)

    def meet(server: int) -> Any:
        until = time.monotonic() + MEET_SECONDS
        if server == pair[0]:
            try:
                listener = listen(address_towards(hosts[1]))
            except OSError as error:
                storage.write(name, msgspec.json.encode((f"server {pair[0]} cannot listen: {error}", 0)))
                return None
            with listener:
                storage.write(name, msgspec.json.encode(listener.getsockname()[:2]))
                serve(listener, MEET_SECONDS, secret)
            return None
        if server != pair[1]:
            return None
        while not storage.exists(name):
            if time.monotonic() > until:
                return f"servers {pair[0]} and {pair[1]} did not run at the same time within {MEET_SECONDS:.0f} s"
            time.sleep(0.02)
        try:
            host, port = msgspec.json.decode(bytes(storage.read(name)))
            return probe((host, port), secret, MEET_SECONDS) if port else host
        except OSError as error:
            return f"server {pair[1]} cannot reach server {pair[0]}: {error}"

    return meet


def _ask(affinity: ServerAffinity, question: Any) -> dict[int, Any]:
    """Return the answer of every server to a question, as JSON-able data."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for server in batch.column("server").to_pylist():
                answer = msgspec.json.encode(question(server))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([server], pa.int32()), pa.array([answer], pa.binary())],
                    names=["server", "payload"],
                )

    rows = affinity.each().mapInArrow(task, ANSWER).collect()
    return {row[0]: msgspec.json.decode(bytes(row[1])) for row in rows}
