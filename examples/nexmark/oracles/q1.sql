-- Currency conversion: the price of every bid in euros.
SELECT auction, bidder, CAST(0.908 * price AS decimal(23, 3)) AS price, dateTime, extra
FROM bid
