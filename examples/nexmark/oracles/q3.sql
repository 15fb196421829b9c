-- Local item suggestion: who sells in Oregon, Idaho or California in category 10, and which auctions?
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
