"""Nexmark's queries in Flink's SQL. Their results equal those of the oracles.

Ties are resolved as in the oracles, which orders rows by more columns than the published texts do. No state expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NOT_RUN: Mapping[str, str] = {
    "q13": "no connector of the package looks up rows of a table of files; a regular join would keep all bids in state",
}
"""Reasons why a query is not run."""

UPDATES = frozenset({"q4", "q6", "q9", "q15", "q16", "q17", "q18", "q19"})
"""Queries whose rows replace earlier rows. They are written as Debezium's JSON, with the row before and after."""


def tables(source: Path) -> list[str]:
    """Statements that create the table of the events, in the JSON files of a folder, and the views of its kinds."""
    return [
        f"""CREATE TABLE events (
            event_type INT,
            person ROW<id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING,
                extra STRING>,
            auction ROW<id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT,
                expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING>,
            bid ROW<auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING>,
            `dateTime` TIMESTAMP_LTZ(3),
            p_time AS PROCTIME(),
            WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '1' SECOND
        ) WITH (
            'connector' = 'filesystem', 'path' = '{source.as_uri()}', 'format' = 'json',
            'json.timestamp-format.standard' = 'ISO-8601'
        )""",
        """CREATE VIEW person AS SELECT e.person.id, e.person.name, e.person.emailAddress, e.person.creditCard,
            e.person.city, e.person.state, e.`dateTime`, e.person.extra FROM events e WHERE e.event_type = 0""",
        """CREATE VIEW auction AS SELECT e.auction.id, e.auction.itemName, e.auction.description, e.auction.initialBid,
            e.auction.reserve, e.`dateTime`, e.auction.expires, e.auction.seller, e.auction.category, e.auction.extra
        FROM events e WHERE e.event_type = 1""",
        """CREATE VIEW bid AS SELECT e.bid.auction, e.bid.bidder, e.bid.price, e.bid.channel, e.bid.url, e.`dateTime`,
            e.bid.extra, e.p_time FROM events e WHERE e.event_type = 2""",
    ]


def sink(query: str, folder: Path, roll_seconds: float) -> str:
    """The statement that creates the table ``answers``: files that become visible with a checkpoint."""
    columns = COLUMNS[query]
    format = "debezium-json" if query in UPDATES else "json"
    return f"""CREATE TABLE answers ({columns}) WITH (
        'connector' = 'filesystem', 'path' = '{folder.as_uri()}', 'format' = '{format}',
        '{format}.timestamp-format.standard' = 'ISO-8601',
        'sink.rolling-policy.rollover-interval' = '{int(roll_seconds * 1000)} ms',
        'sink.rolling-policy.check-interval' = '{int(roll_seconds * 1000)} ms'
    )"""


def insert(query: str) -> str:
    return f"INSERT INTO answers {QUERIES[query]}"


_AT = "`dateTime` TIMESTAMP_LTZ(3)"
_WINDOW = "starttime TIMESTAMP(3), endtime TIMESTAMP(3)"
_BID = f"auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, {_AT}, extra STRING"
_LEVELS = ("total", "rank1", "rank2", "rank3")
_COUNTS = ", ".join(f"{level}_{what} BIGINT" for what in ("bids", "bidders", "auctions") for level in _LEVELS)

COLUMNS: Mapping[str, str] = {
    "q0": f"auction BIGINT, bidder BIGINT, price BIGINT, {_AT}, extra STRING",
    "q1": f"auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), {_AT}, extra STRING",
    "q2": "auction BIGINT, price BIGINT",
    "q3": "name STRING, city STRING, state STRING, id BIGINT",
    "q4": "category BIGINT, final BIGINT",
    "q5": f"auction BIGINT, num BIGINT, {_WINDOW}",
    "q6": "seller BIGINT, avg_price BIGINT",
    "q7": f"auction BIGINT, bidder BIGINT, price BIGINT, {_AT}, extra STRING",
    "q8": "id BIGINT, name STRING, starttime TIMESTAMP(3)",
    "q9": f"""id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, {_AT},
        expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING, auction BIGINT, bidder BIGINT,
        price BIGINT, `bid_dateTime` TIMESTAMP_LTZ(3), bid_extra STRING""",
    "q10": f"auction BIGINT, bidder BIGINT, price BIGINT, {_AT}, extra STRING, dt STRING, hm STRING",
    "q11": f"bidder BIGINT, bid_count BIGINT, {_WINDOW}",
    "q12": f"bidder BIGINT, bid_count BIGINT, {_WINDOW}",
    "q14": f"""auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), bidTimeType STRING, {_AT}, extra STRING,
        c_counts BIGINT""",
    "q15": f"`day` STRING, {_COUNTS}",
    "q16": f"channel STRING, `day` STRING, `minute` STRING, {_COUNTS}",
    "q17": """auction BIGINT, `day` STRING, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
        min_price BIGINT, max_price BIGINT, avg_price BIGINT, sum_price BIGINT""",
    "q18": _BID,
    "q19": f"{_BID}, rank_number BIGINT",
    "q20": """auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
        `bid_dateTime` TIMESTAMP_LTZ(3), bid_extra STRING, itemName STRING, description STRING, initialBid BIGINT,
        reserve BIGINT, `auction_dateTime` TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT,
        auction_extra STRING""",
    "q21": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, channel_id STRING",
    "q22": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, dir1 STRING, dir2 STRING, dir3 STRING",
}
"""The columns of each result."""


def _statistics() -> str:
    levels = {
        "total": "",
        "rank1": " FILTER (WHERE price < 10000)",
        "rank2": " FILTER (WHERE price BETWEEN 10000 AND 999999)",
        "rank3": " FILTER (WHERE price >= 1000000)",
    }
    counts = ("*", "DISTINCT bidder", "DISTINCT auction")
    return ", ".join(f"COUNT({what}){condition}" for what in counts for condition in levels.values())


_OPEN_BIDS = "auction a JOIN bid b ON a.id = b.auction WHERE b.`dateTime` BETWEEN a.`dateTime` AND a.expires"
_DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
_MINUTE = "DATE_FORMAT(`dateTime`, 'HH:mm')"
_TUMBLING = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))"
_SLIDING = "TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_COUNTED = f"""SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM {_SLIDING} GROUP BY auction, window_start, window_end"""

QUERIES: Mapping[str, str] = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)), `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, AVG(final) FROM (
            SELECT a.category, MAX(b.price) AS final FROM {_OPEN_BIDS} GROUP BY a.id, a.category
        ) GROUP BY category""",
    "q5": f"""SELECT counted.auction, counted.num, counted.window_start, counted.window_end
        FROM ({_COUNTED}) counted
        JOIN (
            SELECT MAX(num) AS most, window_start, window_end FROM ({_COUNTED}) GROUP BY window_start, window_end
        ) highest
        ON counted.window_start = highest.window_start AND counted.window_end = highest.window_end
            AND counted.num = highest.most""",
    "q6": f"""SELECT seller, AVG(price) FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS newness FROM (
                SELECT a.id, a.seller, a.expires, MAX(b.price) AS price FROM {_OPEN_BIDS}
                GROUP BY a.id, a.seller, a.expires
            )
        ) WHERE newness <= 10 GROUP BY seller""",
    "q7": f"""SELECT b.auction, b.bidder, b.price, b.`dateTime`, b.extra
        FROM (SELECT * FROM {_TUMBLING.format("bid")}) b
        JOIN (
            SELECT MAX(price) AS highest, window_start, window_end FROM {_TUMBLING.format("bid")}
            GROUP BY window_start, window_end
        ) h
        ON b.window_start = h.window_start AND b.window_end = h.window_end AND b.price = h.highest""",
    "q8": f"""SELECT p.id, p.name, p.window_start
        FROM (
            SELECT id, name, window_start, window_end FROM {_TUMBLING.format("person")}
            GROUP BY id, name, window_start, window_end
        ) p JOIN (
            SELECT seller, window_start, window_end FROM {_TUMBLING.format("auction")}
            GROUP BY seller, window_start, window_end
        ) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": f"""SELECT id, itemName, description, initialBid, reserve, `dateTime`, expires, seller, category, extra,
            auction, bidder, price, bid_dateTime, bid_extra
        FROM (
            SELECT a.*, b.auction, b.bidder, b.price, b.`dateTime` AS bid_dateTime, b.extra AS bid_extra,
                ROW_NUMBER() OVER (
                    PARTITION BY a.id ORDER BY b.price DESC, b.`dateTime` ASC, b.bidder ASC, b.extra ASC
                ) AS place
            FROM {_OPEN_BIDS}
        ) WHERE place = 1""",
    "q10": f"SELECT auction, bidder, price, `dateTime`, extra, {_DAY}, {_MINUTE} FROM bid",
    "q11": """SELECT bidder, COUNT(*), window_start, window_end
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": """SELECT bidder, COUNT(*), window_start, window_end
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q14": """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)),
            CASE
                WHEN EXTRACT(HOUR FROM `dateTime`) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN EXTRACT(HOUR FROM `dateTime`) IN (7, 19) THEN 'otherTime'
                ELSE 'nightTime'
            END,
            `dateTime`, extra, CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS BIGINT)
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY}, {_statistics()} FROM bid GROUP BY {_DAY}",
    "q16": f"SELECT channel, {_DAY}, MAX({_MINUTE}), {_statistics()} FROM bid GROUP BY channel, {_DAY}",
    "q17": f"""SELECT auction, {_DAY}, COUNT(*), COUNT(*) FILTER (WHERE price < 10000),
            COUNT(*) FILTER (WHERE price BETWEEN 10000 AND 999999), COUNT(*) FILTER (WHERE price >= 1000000),
            MIN(price), MAX(price), AVG(price), SUM(price)
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": """SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY bidder, auction ORDER BY `dateTime` DESC, price DESC, channel DESC, url DESC, extra DESC
            ) AS place FROM bid
        ) WHERE place = 1""",
    "q19": """SELECT auction, bidder, price, channel, url, `dateTime`, extra, place FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction ORDER BY price DESC, `dateTime` ASC, bidder ASC, channel ASC, url ASC, extra ASC
            ) AS place FROM bid
        ) WHERE place <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.`dateTime`, b.extra, a.itemName, a.description,
            a.initialBid, a.reserve, a.`dateTime`, a.expires, a.seller, a.category, a.extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, channel_id FROM (
            SELECT *, CASE LOWER(channel)
                WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                ELSE NULLIF(REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2), '')
            END AS channel_id FROM bid
        ) WHERE channel_id IS NOT NULL""",
    "q22": """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4),
            SPLIT_INDEX(url, '/', 5)
        FROM bid""",
}
