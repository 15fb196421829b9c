-- Calculation: bids within a range of prices, the time of day of each, and how often the letter c is in it.
SELECT auction, bidder, CAST(0.908 * price AS decimal(23, 3)) AS price,
    CASE
        WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
        WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS bidTimeType,
    dateTime, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS bigint) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
