"""The application of the demo: posts per place, then the topics that trend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import weir

SCHEMA = "place string, topic string, text string, minute long"
KEYS = {"places": "place", "topics": "topic"}  # key column by operator


@dataclass
class Topic:
    """The state of a topic."""

    posts: int = 0
    minute: int = -1
    now: int = 0  # posts in this minute
    usual: float = 0.0  # posts in a minute, averaged over the past
    told: bool = False  # whether this minute's alarm has been raised


class Trending(weir.Process):
    """Raise an alarm when a topic gets many times the posts that it usually gets, once a minute at most."""

    state = Topic
    output = {"topic": "string", "minute": "long", "posts": "long", "usual": "double", "text": "string"}
    columns = ("minute", "text")

    def __init__(self, least: int = 100, times: float = 8.0) -> None:
        self.least, self.times = least, times

    def process(self, key: Any, rows: Sequence[Any], state: Any) -> Iterator[Any]:
        # a topic's posts of one minute may come in two calls: those that were on its server already, then the rest
        minute = rows[0].minute
        if minute > state.minute:
            if state.minute >= 0:
                gap = minute - state.minute
                state.usual = 0.7**gap * state.usual + (1 - 0.7**gap) * state.now / gap
            state.minute, state.now, state.told = minute, 0, False
        state.posts += len(rows)
        state.now += len(rows)
        if minute and not state.told and state.now >= max(self.least, self.times * state.usual):
            state.told = True
            yield key, minute, state.now, state.usual, rows[0].text


def application(posts: Any) -> weir.Stream:
    """Return the application over a stream of posts."""
    return (
        weir.source(posts)
        .count(KEYS["places"], column="posts", name="places", emit="rows")
        .keyed(KEYS["topics"], Trending(), name="topics")
    )
