"""Query 14, calculation: time of day and number of letters c, for bids of more than 1 and less than 50 million
euros.
"""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import nexmark


def build(parameters: nexmark.Parameters) -> Pipeline:
    pipeline = Pipeline("nexmark-q14")
    events = pipeline.read("events", parameters.source())
    part_of_day = """
        CASE
            WHEN hour(dateTime) IN (7, 19) THEN 'otherTime'
            WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            ELSE 'nightTime'
        END"""
    bids = nexmark.bids(events).with_columns(price="CAST(price * 0.908 AS decimal(23, 3))", bidTimeType=part_of_day)
    large = bids.where("price > 1000000 AND price < 50000000").with_columns(
        c_counts="CAST(regexp_count(extra, 'c') AS bigint)"
    )
    large.select("auction", "bidder", "price", "bidTimeType", "dateTime", "extra", "c_counts").write(
        "q14", parameters.sink()
    )
    return pipeline
