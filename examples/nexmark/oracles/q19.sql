-- Top ten: the highest bids of each auction. Of equal ones the earliest first, then by bidder and text; the published text
-- takes any.
SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number
FROM (
    SELECT *, CAST(row_number() OVER (
        PARTITION BY auction ORDER BY price DESC, dateTime, bidder, channel, url, extra
    ) AS bigint) AS rank_number
    FROM bid
)
WHERE rank_number <= 10
