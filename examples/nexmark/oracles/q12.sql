-- Processing time windows: how many bids does a bidder place in 10 seconds of the clock? A batch has no such time: the
-- view `bid` has it as `p_time`, the time of the epoch that took the bid where the events have a column epoch_time, else
-- the bid's own time.
SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
FROM bid
GROUP BY bidder, window(p_time, '10 seconds')
