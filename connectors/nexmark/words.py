"""Texts of events. Each kind is a pool that is made once in a process; events take from it by index, without Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.connectors.nexmark.draws import LANES, Lane, Whole, below, draws

HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
OTHER_CHANNELS = 10_000
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

_POOL = 8192
_LONG_POOL = 2048
_FIRST_PURPOSE = 16
"""Pools are drawn from streams of their own: those of events are below."""


@dataclass(frozen=True)
class Words:
    """The pools of one seed; ``channels`` and ``urls`` belong together, the hot ones first."""

    names: pa.StringArray
    mailboxes: pa.StringArray
    hosts: pa.StringArray
    digits: pa.StringArray
    cities: pa.StringArray
    states: pa.StringArray
    items: pa.StringArray
    descriptions: pa.StringArray
    channels: pa.StringArray
    urls: pa.StringArray
    person_extras: pa.StringArray
    auction_extras: pa.StringArray
    bid_extras: pa.StringArray


@lru_cache(maxsize=4)
def words(seed: int) -> Words:
    """The pools of ``seed``. Lengths are the published benchmark's: an average bid has 100 bytes, a person 200, an
    auction 500."""
    purposes = iter(range(_FIRST_PURPOSE, 1 << 16))

    def text(shortest: int, longest: int, size: int = _POOL, separator: str = " ") -> pa.StringArray:
        return _pool(seed, next(purposes), size, shortest, longest, separator)

    channels = len(HOT_CHANNELS) + OTHER_CHANNELS
    return Words(
        names=pa.array([f"{first} {last}" for first, last in product(FIRST_NAMES, LAST_NAMES)]),
        mailboxes=text(3, 6, separator=""),
        hosts=text(3, 4, separator=""),
        digits=pa.array([f"{number:04}" for number in range(10_000)]),
        cities=pa.array(CITIES),
        states=pa.array(STATES),
        items=text(3, 19),
        descriptions=text(3, 99),
        channels=pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(OTHER_CHANNELS))]),
        urls=_urls([text(3, 4, channels, "_") for _ in range(3)], draws(seed, next(purposes), 0, channels)),
        person_extras=text(108, 161, _LONG_POOL, ""),
        auction_extras=text(312, 467, _LONG_POOL, ""),
        bid_extras=text(54, 81, separator=""),
    )


def _urls(folders: list[pa.StringArray], lanes: Lane) -> pa.StringArray:
    """A page for each channel. All hot channels are known by name; nine of ten others say in the page who they are."""
    pages = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    ids = pc.binary_join_element_wise("&channel_id=", pa.array(lanes[:, 0] >> 1).cast(pa.string()), "")
    says = (below(lanes[:, 1], 10) > 0) & (np.arange(len(lanes)) >= len(HOT_CHANNELS))
    return pc.binary_join_element_wise(pages, pc.if_else(pa.array(says), ids, ""), "")


def _pool(seed: int, purpose: int, size: int, shortest: int, longest: int, separator: str) -> pa.StringArray:
    """Texts of random letters, one of thirteen of which is the separator, if there is one; never the first or last."""
    lengths = shortest + below(draws(seed, purpose, 0, size)[:, 0], longest - shortest + 1)
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    lanes = draws(seed, purpose + (1 << 16), 0, -(-total // LANES)).reshape(-1)[:total]
    letters = (ord("a") + below(lanes, 26)).astype(np.uint8)
    if separator:
        separated = below(lanes << np.uint32(16), 13) == 0
        separated[ends - lengths] = False
        separated[ends - 1] = False
        letters[separated] = ord(separator)
    offsets: Whole = np.concatenate([[0], ends])
    return pa.StringArray.from_buffers(size, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(letters))
