"""librdkafka's mock brokers in a process of their own: the real protocol over TCP, steered through stdin.

    python mock_kafka.py BROKERS

prints where the brokers listen. Commands, one per line, each answered by a line: ``topic NAME PARTITIONS``,
``down BROKER``, ``up BROKER``. It ends with its stdin.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys

import confluent_kafka

PRODUCER = 0


def library() -> ctypes.CDLL:
    """Return the librdkafka that the Python client has brought along."""
    beside = os.path.dirname(os.path.dirname(confluent_kafka.__file__))
    (path,) = glob.glob(os.path.join(beside, "confluent_kafka.libs", "librdkafka*.so*"))
    lib = ctypes.CDLL(path)
    for name, result, arguments in [
        ("rd_kafka_conf_new", ctypes.c_void_p, []),
        (
            "rd_kafka_new",
            ctypes.c_void_p,
            [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t],
        ),
        ("rd_kafka_mock_cluster_new", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
        ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, [ctypes.c_void_p]),
        (
            "rd_kafka_mock_topic_create",
            ctypes.c_int,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
        ),
        ("rd_kafka_mock_broker_set_down", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def main(brokers: int) -> None:
    lib = library()
    text = ctypes.create_string_buffer(500)
    client = lib.rd_kafka_new(PRODUCER, lib.rd_kafka_conf_new(), text, 500)
    assert client, text.value
    cluster = lib.rd_kafka_mock_cluster_new(client, brokers)
    print(lib.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                code = lib.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
            case ["down", broker]:
                code = lib.rd_kafka_mock_broker_set_down(cluster, int(broker))
            case ["up", broker]:
                code = lib.rd_kafka_mock_broker_set_up(cluster, int(broker))
            case _:
                code = -1
        print(code, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
