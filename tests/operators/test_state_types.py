"""The user's own types for state, as msgspec sees them."""

import dataclasses
import threading
import time

import msgspec

from weir.operators.process.state_types import decoder_of

inside: list[int] = []  # how many looked at the type at once
looking = 0


def whole_number() -> type:
    """Stand for an annotation that takes long to evaluate."""
    global looking
    looking += 1
    inside.append(looking)
    time.sleep(0.02)
    looking -= 1
    return int


def test_servers_of_one_process_look_at_a_type_one_after_the_other():
    """msgspec copies a class's attributes while it looks, and then adds one."""
    kind = dataclasses.make_dataclass(
        "Run", [("rows", "whole_number()", 0)], namespace={"__module__": __name__}
    )
    data, states = msgspec.msgpack.encode({"rows": 3}), []
    threads = [
        threading.Thread(
            target=lambda: states.append(decoder_of(kind, lambda kind, value: value).decode(data))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.rows for state in states] == [3] * 4
    assert max(inside) == 1
