-- Average price of a category: of the winning bids of its auctions.
SELECT category, CAST(avg(final) AS bigint) AS final
FROM (
    SELECT a.category, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction
    WHERE b.dateTime BETWEEN a.dateTime AND a.expires
    GROUP BY a.id, a.category
)
GROUP BY category
