"""The demo's stream, posts about topics from places, and its application: posts per place, topics that trend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir

SCHEMA = "place string, topic string, text string, minute long"
KEYS = {"places": "place", "topics": "topic"}  # key column by operator


def _words(text: str) -> list[str]:
    return text.split()


PLACES = _words(
    "Lisbon Lagos Lima Lyon Leeds Osaka Oslo Quito Cairo Delhi Dakar Dublin Accra Athens Berlin Bogotá Boston "
    "Busan Cork Cusco Denver Fez Geneva Ghent Hanoi Havana Izmir Jaipur Kyoto Lahore Madrid Malmö Milan Mumbai "
    "Nairobi Naples Paris Perth Porto Prague Riga Rome Santiago Seoul Split Tbilisi Toronto Vienna"
)
NOUNS = _words(
    "jazz football chess bread coffee cinema poetry radio cycling sailing tango theatre books museum parade "
    "bridge lights trains trams ferries gardens bees cats dogs birds robots drones pottery comics murals "
    "festival marathon strike election storm flood snow eclipse harvest tea noodles tacos cheese wine opera "
    "choir ballet surf climbing darts"
)
WORDS = _words(
    "what a day to see people out again and the whole town seems to talk of nothing else since this morning "
    "while others still wonder who started it all and where it goes from here tonight"
)
TOPICS = 1500
FAITHFUL = 0.85  # share of a topic's posts that come from its home place
EXPLODES_EVERY, EXPLOSION = 4, 0.03  # minutes; share of all posts that the exploding topic gets


class Posts:
    """A stream of posts in batches: topics are Zipf-distributed, each has a home place, and homes drift.

    A batch is a minute with ``rows`` posts; ``drift`` is the share of topics that move to another place per minute,
    and the share that is replaced by new ones. The seed fixes the whole stream.

    >>> posts = Posts(1000, seed=7)
    >>> first, second = posts.next(), posts.next()
    >>> first.num_rows, second["minute"][0].as_py()
    (1000, 1)
    """

    def __init__(self, rows: int, *, drift: float = 0.01, seed: int = 0) -> None:
        self.rows, self.drift, self.minute = rows, drift, 0
        self.rng = rng = np.random.default_rng(seed)
        self.names = [f"{NOUNS[i % len(NOUNS)]}-{i // len(NOUNS) + 1}" for i in range(TOPICS)]
        self.place_share = _zipf(len(PLACES), 0.7)
        self.topic_share = rng.permutation(_zipf(TOPICS, 0.9))
        self.home = rng.choice(len(PLACES), TOPICS, p=self.place_share)
        choices = rng.integers(0, len(WORDS), (400, 14))
        self.texts = pa.array([" ".join(WORDS[i] for i in row) for row in choices])

    def next(self) -> pa.Table:
        """Return the posts of the next minute; in some minutes a quiet topic explodes."""
        rng, share = self.rng, self.topic_share
        if self.minute:
            self._drift()
        if self.minute % EXPLODES_EVERY == EXPLODES_EVERY - 1:
            share = share.copy()
            share[rng.choice(np.flatnonzero(share < np.median(share)))] = EXPLOSION
        topic = rng.choice(TOPICS, self.rows, p=share / share.sum())
        elsewhere = rng.choice(len(PLACES), self.rows, p=self.place_share)
        place = np.where(rng.random(self.rows) < FAITHFUL, self.home[topic], elsewhere)
        columns = {
            "place": pa.array(PLACES).take(pa.array(place)),
            "topic": pa.array(self.names).take(pa.array(topic)),
            "text": self.texts.take(pa.array(rng.integers(0, len(self.texts), self.rows))),
            "minute": pa.array(np.full(self.rows, self.minute, np.int64)),
        }
        self.minute += 1
        return pa.table(columns)

    def write(self, folder: Path, minutes: int) -> None:
        """Write one file per minute up to this one, dated a second apart: Spark reads files in order of their dates."""
        for number in range(self.minute, minutes):
            hidden = folder / f".{number:05d}.parquet"  # from Spark, until it is whole
            pq.write_table(self.next(), hidden)
            os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
            hidden.rename(folder / hidden.name[1:])

    def _drift(self) -> None:
        """Move some topics to another place, and replace some by new ones: old names with a new number."""
        draw = self.rng.random(TOPICS)
        moved = draw < self.drift
        self.home[moved] = self.rng.choice(len(PLACES), int(moved.sum()), p=self.place_share)
        for i in np.flatnonzero(draw > 1 - self.drift):
            self.names[i] = f"{self.names[i].split('/')[0]}/{self.minute + 1}"


def _zipf(n: int, exponent: float) -> np.ndarray:
    share = 1.0 / np.arange(1, n + 1) ** exponent
    return share / share.sum()


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
    places = weir.source(posts).count(KEYS["places"], column="posts", name="places", emit="rows")
    return places.keyed(KEYS["topics"], Trending(), name="topics")
