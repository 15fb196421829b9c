-- Monitor new users: who registered and began auctions in the same 10 seconds?
SELECT DISTINCT p.id, p.name, p.starttime
FROM (SELECT id, name, window(dateTime, '10 seconds').start AS starttime FROM person) p
JOIN (SELECT seller, window(dateTime, '10 seconds').start AS starttime FROM auction) a
ON p.id = a.seller AND p.starttime = a.starttime
