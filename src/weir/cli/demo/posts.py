"""The stream of the demo: posts about topics, from places."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def _words(text: str) -> list[str]:
    return text.split()


PLACES = _words(
    "Lisbon Lagos Lima Lyon Leeds Osaka Oslo Quito Cairo Delhi Dakar Dublin Accra Athens Berlin Bogotá "
    "Boston Busan Cork Cusco Denver Fez Geneva Ghent Hanoi Havana Izmir Jaipur Kyoto Lahore Madrid Malmö "
    "Milan Mumbai Nairobi Naples Paris Perth Porto Prague Riga Rome Santiago Seoul Split Tbilisi Toronto "
    "Vienna"
)
ADJECTIVES = _words(
    "harbour river street winter summer night city garden mountain island market school garage rooftop "
    "desert railway solar vintage open secret tiny electric wooden silver lost first last free old new "
    "wild quiet loud slow fast deep high blue green golden"
)
NOUNS = _words(
    "jazz football chess bread coffee cinema poetry radio cycling sailing tango theatre books museum "
    "parade bridge lights trains trams ferries gardens bees cats dogs birds robots drones pottery comics "
    "murals festival marathon strike election storm flood snow eclipse harvest tea noodles tacos cheese "
    "wine opera choir ballet surf climbing darts"
)
WORDS = _words(
    "what a day to see people out again and the whole town seems to talk of nothing else since this "
    "morning while others still wonder who started it all and where it goes from here tonight"
)
_EXPLODES_EVERY = 4  # minutes
_EXPLOSION = 0.03  # share of all posts that the exploding topic gets


class Posts:
    """A stream of posts in batches: topics are Zipf-distributed, each has a home place, and homes drift.

    A batch is a minute with ``rows`` posts about ``topics`` topics; ``faithful`` is the share of a topic's posts
    that come from its home place, ``drift`` the share of topics that move to another place per minute, and the
    share that is replaced by new ones. The seed fixes the whole stream.

    >>> posts = Posts(1000, seed=7)
    >>> first, second = posts.next(), posts.next()
    >>> first.num_rows, second["minute"][0].as_py()
    (1000, 1)
    """

    def __init__(
        self, rows: int, *, topics: int = 1500, faithful: float = 0.85, drift: float = 0.01, seed: int = 0
    ) -> None:
        self.rows, self.faithful, self.drift = rows, faithful, drift
        self.rng = np.random.default_rng(seed)
        self.minute = 0
        names = [f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]
        self.names = [names[i] for i in self.rng.permutation(len(names))[:topics]]
        self.editions = 1  # a new topic is an old name with a new number
        self.place_share = _zipf(len(PLACES), 0.7)
        self.topic_share = self.rng.permutation(_zipf(topics, 0.9))
        self.home = self.rng.choice(len(PLACES), topics, p=self.place_share)
        choices = self.rng.integers(0, len(WORDS), (400, 14))
        self.texts = pa.array([" ".join(WORDS[i] for i in row) for row in choices])

    def next(self) -> pa.Table:
        """Return the posts of the next minute."""
        rng = self.rng
        if self.minute:
            self._drift()
        topic = rng.choice(len(self.names), self.rows, p=self._topic_shares())
        elsewhere = rng.choice(len(PLACES), self.rows, p=self.place_share)
        place = np.where(rng.random(self.rows) < self.faithful, self.home[topic], elsewhere)
        table = pa.table(
            {
                "place": pa.array(PLACES).take(pa.array(place)),
                "topic": pa.array(self.names).take(pa.array(topic)),
                "text": self.texts.take(pa.array(rng.integers(0, len(self.texts), self.rows))),
                "minute": pa.array(np.full(self.rows, self.minute, np.int64)),
            }
        )
        self.minute += 1
        return table

    def write(self, folder: Path, batches: int) -> None:
        """Write one file per batch, dated a second apart: Spark reads files in the order of their dates."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(batches):
            path = folder / f"{number:05d}.parquet"
            pq.write_table(self.next(), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def _drift(self) -> None:
        """Move some topics to another place, and replace some by new ones."""
        draw = self.rng.random(len(self.names))
        moved = draw < self.drift
        self.home[moved] = self.rng.choice(len(PLACES), int(moved.sum()), p=self.place_share)
        self.editions += 1
        for i in np.flatnonzero(draw > 1 - self.drift):
            self.names[i] = f"{self.names[i].split('/')[0]}/{self.editions}"

    def _topic_shares(self) -> np.ndarray:
        """Return each topic's share of this minute's posts; in some minutes a quiet topic explodes."""
        if self.minute % _EXPLODES_EVERY != _EXPLODES_EVERY - 1:
            return self.topic_share
        share = self.topic_share.copy()
        share[self.rng.choice(np.flatnonzero(share < np.median(share)))] = _EXPLOSION
        return share / share.sum()


def _zipf(n: int, exponent: float) -> np.ndarray:
    share = 1.0 / np.arange(1, n + 1) ** exponent
    return share / share.sum()
