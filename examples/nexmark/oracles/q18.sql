-- Last bid: of each bidder for each auction. Of several at the same time the highest; the published text takes any.
SELECT auction, bidder, price, channel, url, dateTime, extra
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC, channel DESC, url DESC, extra DESC
    ) AS rank_number
    FROM bid
)
WHERE rank_number = 1
