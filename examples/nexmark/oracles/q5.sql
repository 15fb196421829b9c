-- Hot items: the auctions with the most bids in each 10 seconds, every 2 seconds. Published without the window's bounds.
WITH counted AS (
    SELECT window.start AS starttime, window.end AS endtime, auction, count(*) AS num
    FROM bid
    GROUP BY window(dateTime, '10 seconds', '2 seconds'), auction
)
SELECT auction, num, starttime, endtime
FROM (SELECT *, max(num) OVER (PARTITION BY starttime) AS most FROM counted)
WHERE num = most
