-- Highest bid: the bids of the highest price in each 10 seconds. The published text also takes a bid at the very end of a
-- window that is as high as the highest in it; such a bid is only in the next one.
SELECT auction, bidder, price, dateTime, extra
FROM (SELECT *, max(price) OVER (PARTITION BY window(dateTime, '10 seconds').start) AS highest FROM bid)
WHERE price = highest
