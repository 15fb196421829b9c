"""The expected results of each query: a batch query in Spark SQL over all events.

The queries are in ``q0.sql`` to ``q22.sql``, over the views that :func:`answer` creates. They share no code with the
pipelines. Windows use event time and are complete: they include rows that are late in a stream.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

QUERIES = tuple(f"q{number}" for number in range(23))

_VIEWS = {
    "person": """
        SELECT person.id, person.name, person.emailAddress, person.creditCard, person.city, person.state, dateTime,
            person.extra
        FROM {events} WHERE person IS NOT NULL""",
    "auction": """
        SELECT auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve, dateTime,
            auction.expires, auction.seller, auction.category, auction.extra
        FROM {events} WHERE auction IS NOT NULL""",
    "bid": """
        SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, dateTime, bid.extra, {epoch_time} AS p_time
        FROM {events} WHERE bid IS NOT NULL""",
    "side_input": "SELECT id AS key, CAST(id AS string) AS value FROM range(10000)",
}


def answer(events: DataFrame, query: str) -> DataFrame:
    """Return the result of ``query`` (``"q0"`` to ``"q22"``) for these events, which have the columns of the source.

    An optional column ``epoch_time`` has the time of the epoch that processed the event.
    """
    spark = events.sparkSession
    events.createOrReplaceTempView("nexmark_events")
    epoch_time = "epoch_time" if "epoch_time" in events.columns else "dateTime"
    for name, text in _VIEWS.items():
        spark.sql(text.format(events="nexmark_events", epoch_time=epoch_time)).createOrReplaceTempView(name)
    return spark.sql((Path(__file__).parent / f"{query}.sql").read_text())
