"""Kafka's brokers as librdkafka mocks them, in a process of their own: the real protocol over TCP.

``python -m weir_evaluation.brokers.mock BROKERS`` prints where they listen, and takes commands, one per line, each
answered by a line: ``topic NAME PARTITIONS``, ``down BROKER``, ``up BROKER``. It ends with its stdin.

What they don't do: transactions are accepted, but nothing is hidden or aborted; offsets are not looked up by time; a
partition keeps 5 MB, and forgets what is older. They serve where Apache Kafka can't be had.
"""

from __future__ import annotations

import ctypes
import glob
import os
import subprocess
import sys
from typing import Any

import confluent_kafka

from weir_evaluation.brokers.cluster import Cluster


class Mock(Cluster):
    """Mock brokers while a ``with`` block lasts; ``servers`` is where they listen."""

    real = False

    def __init__(self, brokers: int = 1) -> None:
        self.brokers = brokers

    def __enter__(self) -> Mock:
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        command = [sys.executable, "-m", __name__, str(self.brokers)]
        self._process = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=nowhere)
        super().__init__(self._line(), self.brokers)
        self.create("weir-deliveries")  # these brokers let clients make no topics
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def create(self, name: str, partitions: int = 1, **config: Any) -> None:
        self._do(f"topic {name} {partitions}")

    def delete(self, name: str) -> None:
        raise NotImplementedError("mock brokers delete no topics")

    def kill(self, broker: int) -> None:
        """Let a broker no longer answer."""
        self._do(f"down {broker}")

    def start(self, broker: int) -> None:
        """Let a broker answer again."""
        self._do(f"up {broker}")

    def _do(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._line()
        if answer != "0":
            raise RuntimeError(f"{command}: {answer}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _library() -> ctypes.CDLL:
    """Return the librdkafka that the Python client has brought along."""
    beside = os.path.dirname(os.path.dirname(confluent_kafka.__file__))
    (path,) = glob.glob(os.path.join(beside, "confluent_kafka.libs", "librdkafka*.so*"))
    library = ctypes.CDLL(path)
    handle, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    functions: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (handle, []),
        "rd_kafka_new": (handle, [number, handle, text, ctypes.c_size_t]),
        "rd_kafka_mock_cluster_new": (handle, [handle, number]),
        "rd_kafka_mock_cluster_bootstraps": (text, [handle]),
        "rd_kafka_mock_topic_create": (number, [handle, text, number, number]),
        "rd_kafka_mock_broker_set_down": (number, [handle, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_up": (number, [handle, ctypes.c_int32]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _serve(brokers: int) -> None:
    library = _library()
    error = ctypes.create_string_buffer(500)
    client = library.rd_kafka_new(0, library.rd_kafka_conf_new(), error, 500)
    assert client, error.value
    cluster = library.rd_kafka_mock_cluster_new(client, brokers)
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                code = library.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
            case ["down", broker]:
                code = library.rd_kafka_mock_broker_set_down(cluster, int(broker))
            case ["up", broker]:
                code = library.rd_kafka_mock_broker_set_up(cluster, int(broker))
            case _:
                code = -1
        print(code, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
