"""Model of the Nexmark benchmark's events: people, auctions and bids.

The distributions (three auctions and 46 bids per person, hot items, numbers of active people and auctions, names,
prices, sizes) are those of the published benchmark, https://github.com/nexmark/nexmark, and of its predecessor in
Apache Beam. The benchmark draws events in sequence from a random generator; this model computes each event from the
seed and its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from epochal.connectors.nexmark.draws import LANES, Lane, Whole, below, chance, draws, prices

PERSON, AUCTION, BID = 0, 1, 2
"""Values of ``event_type``."""
AUCTIONS, GROUP = 3, 50
"""Layout of 50 consecutive events: the first is a person, the next three are auctions, the others are bids."""
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_EVERY = 100
"""Number of consecutive auctions (or people) that share one hot item while they are the newest."""
LEAD = 10
"""Number of future auctions or people to which bids and auctions may refer, so that consumers cannot rely on order."""

_TIME = pa.timestamp("us", "UTC")
_PERSON = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("emailAddress", pa.string()),
        ("creditCard", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("extra", pa.string()),
    ]
)
_AUCTION = pa.struct(
    [
        ("id", pa.int64()),
        ("itemName", pa.string()),
        ("description", pa.string()),
        ("initialBid", pa.int64()),
        ("reserve", pa.int64()),
        ("expires", _TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("extra", pa.string()),
    ]
)
_BID = pa.struct(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("extra", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("event_type", pa.int32()),
        ("person", _PERSON),
        ("auction", _AUCTION),
        ("bid", _BID),
        ("dateTime", _TIME),
        ("_partition", pa.int32()),
    ]
)
"""Columns of an event. Two of the three structs are null."""

# Purposes of draws(): a separate random stream each, so that a further draw for one does not change the others.
_OF_EVENTS, _OF_PEOPLE, _OF_AUCTIONS = 0, 1, 2


@dataclass(frozen=True)
class Model:
    """Parameters of the events. Times are microseconds (since 1970), ratios are integers from 1 on."""

    seed: int
    events_per_second: int
    first_event_at: int
    partitions: int = 1
    skew: int = 0
    late_share: float = 0.0
    late_by: int = 0
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    active_people: int = 1000
    in_flight_auctions: int = 100

    def events(self, start: int, end: int) -> pa.RecordBatch:
        """Events ``start`` to ``end - 1``, in the order of their numbers, with the columns of ``SCHEMA``."""
        numbers = np.arange(start, end, dtype=np.int64)
        lanes = draws(self.seed, _OF_EVENTS, start, end - start)
        pool = words(self.seed)
        places = (numbers // GROUP % self.partitions).astype(np.int32)
        times = self._times(numbers, places, lanes[:, 0])
        within = numbers % GROUP
        kinds = np.full(len(numbers), BID, np.int32)
        kinds[within <= AUCTIONS] = AUCTION
        kinds[within == 0] = PERSON
        columns = [
            pa.array(kinds),
            _spread(self._people(start, end, pool), kinds == PERSON),
            _spread(self._auctions(start, end, pool, times[kinds == AUCTION]), kinds == AUCTION),
            self._bids(numbers, kinds != BID, pool, lanes[:, 1:]),
            _timestamps(times),
            pa.array(places),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def partitions_of(self, start: int, end: int) -> frozenset[int]:
        """The partitions that contain events ``start`` to ``end - 1``."""
        groups = range(start // GROUP, -(-end // GROUP))
        return frozenset(group % self.partitions for group in groups[: self.partitions])

    def _times(self, numbers: Whole, places: NDArray[np.int32], lane: Lane) -> Whole:
        times: Whole = self.first_event_at + numbers * 1_000_000 // self.events_per_second
        if self.skew:
            times -= places.astype(np.int64) * self.skew // (self.partitions - 1)
        if self.late_share:
            times[chance(lane, self.late_share)] -= self.late_by
        return times

    def _people(self, start: int, end: int, pool: Words) -> pa.StructArray:
        first, last = -(-start // GROUP), -(-end // GROUP)
        lanes = draws(self.seed, _OF_PEOPLE, first, last - first, blocks=2)
        host = _some(pool.hosts, lanes[:, 2])
        email = pc.binary_join_element_wise(_some(pool.mailboxes, lanes[:, 1]), host, "@")
        cards = [_some(pool.digits, lanes[:, lane]) for lane in range(3, 7)]
        return _struct(
            _PERSON,
            np.arange(first, last) + FIRST_ID,
            _some(pool.names, lanes[:, 0]),
            pc.binary_join_element_wise(email, ".com", ""),
            pc.binary_join_element_wise(*cards, " "),
            _some(pool.cities, lanes[:, 7]),
            _some(pool.states, lanes[:, 8]),
            _some(pool.person_extras, lanes[:, 9]),
        )

    def _auctions(self, start: int, end: int, pool: Words, times: Whole) -> pa.StructArray:
        first, last = _auctions_before(start), _auctions_before(end)
        ids = np.arange(first, last)
        lanes = draws(self.seed, _OF_AUCTIONS, first, last - first, blocks=2)
        newest_person = ids // AUCTIONS
        seller = self._hot_or_active(newest_person, lanes[:, 0], lanes[:, 1], self.hot_seller_ratio, hot=0)
        first_price = prices(lanes[:, 2])
        return _struct(
            _AUCTION,
            ids + FIRST_ID,
            _some(pool.items, lanes[:, 3]),
            _some(pool.descriptions, lanes[:, 4]),
            first_price,
            first_price + prices(lanes[:, 5]),
            _timestamps(times + 1000 * (1 + below(lanes[:, 6], 2 * self._horizon_milliseconds))),
            seller + FIRST_ID,
            FIRST_CATEGORY + below(lanes[:, 7], CATEGORIES),
            _some(pool.auction_extras, lanes[:, 8]),
        )

    def _bids(self, numbers: Whole, others: NDArray[np.bool_], pool: Words, lanes: Lane) -> pa.StructArray:
        """A bid for every number, null where ``others`` marks another kind of event. Most events are bids."""
        newest_person = numbers // GROUP
        newest = newest_person * AUCTIONS + AUCTIONS - 1
        oldest = np.maximum(newest - self.in_flight_auctions, 0)
        some_auction = oldest + below(lanes[:, 0], newest - oldest + 1 + LEAD)
        is_hot = below(lanes[:, 1], self.hot_auction_ratio) > 0
        auction = np.where(is_hot, newest // HOT_EVERY * HOT_EVERY, some_auction)
        # The second person of each hundred, so that the hot bidder is not the hot seller.
        bidder = self._hot_or_active(newest_person, lanes[:, 2], lanes[:, 3], self.hot_bidder_ratio, hot=1)
        place = lanes[:, 5]
        channel = np.where(
            place & 1 == 1, below(place, len(HOT_CHANNELS)), len(HOT_CHANNELS) + below(place, OTHER_CHANNELS)
        )
        channels = pa.array(channel, mask=others)
        return _struct(
            _BID,
            auction + FIRST_ID,
            bidder + FIRST_ID,
            prices(lanes[:, 4]),
            pool.channels.take(channels),
            pool.urls.take(channels),
            pool.bid_extras.take(pa.array(below(lanes[:, 6], len(pool.bid_extras)), mask=others)),
            mask=others,
        )

    def _hot_or_active(self, newest: Whole, hotness: Lane, pick: Lane, ratio: int, hot: int) -> Whole:
        """People: one in ``ratio`` is any active person, the others are the hot person of the newest hundred."""
        active = np.minimum(newest + 1, self.active_people)
        any_active = newest + 1 - active + below(pick, active + LEAD)
        return np.where(below(hotness, ratio) > 0, newest // HOT_EVERY * HOT_EVERY + hot, any_active)

    @property
    def _horizon_milliseconds(self) -> int:
        """Average duration of an auction: the time in which ``in_flight_auctions`` further auctions start."""
        events = self.in_flight_auctions * GROUP // AUCTIONS
        return max(events * 1000 // self.events_per_second, 1)


def _auctions_before(number: int) -> int:
    """Number of auctions among the events before event ``number``."""
    return number // GROUP * AUCTIONS + min(max(number % GROUP - 1, 0), AUCTIONS)


def _some(pool: pa.StringArray, lane: Lane) -> pa.StringArray:
    return pool.take(pa.array(below(lane, len(pool))))


def _timestamps(microseconds: Whole) -> pa.Array:
    return pa.array(microseconds, pa.int64()).view(_TIME)


def _struct(kind: pa.StructType, *values: object, mask: NDArray[np.bool_] | None = None) -> pa.StructArray:
    arrays = [value if isinstance(value, pa.Array) else pa.array(value) for value in values]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=None if mask is None else pa.array(mask))


def _spread(few: pa.StructArray, where: NDArray[np.bool_]) -> pa.StructArray:
    """An array with the elements of ``few`` where ``where`` is true, and null elsewhere."""
    return few.take(pa.array(np.cumsum(where) - 1, mask=~where))


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
"""First random stream of the pools of words; the streams below it belong to events."""


@dataclass(frozen=True)
class Words:
    """Pools of texts of one seed. ``channels`` and ``urls`` correspond by index, the hot channels first."""

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
    """The pools of ``seed``. Average sizes are those of the published benchmark: 100 bytes for a bid, 200 for a person,
    500 for an auction."""
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
    """A page URL for each channel. Nine in ten of the channels that are not hot have their ID in the URL."""
    pages = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    ids = pc.binary_join_element_wise("&channel_id=", pa.array(lanes[:, 0] >> 1).cast(pa.string()), "")
    says = (below(lanes[:, 1], 10) > 0) & (np.arange(len(lanes)) >= len(HOT_CHANNELS))
    return pc.binary_join_element_wise(pages, pc.if_else(pa.array(says), ids, ""), "")


def _pool(seed: int, purpose: int, size: int, shortest: int, longest: int, separator: str) -> pa.StringArray:
    """Texts of random letters. One in thirteen letters, never the first or last, is the separator, if there is one."""
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
