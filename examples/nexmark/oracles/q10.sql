-- Log to files: every bid with the day and the minute that it belongs to. The published query lets its file system's sink
-- make a folder of each minute.
SELECT auction, bidder, price, dateTime, extra,
    date_format(dateTime, 'yyyy-MM-dd') AS dt, date_format(dateTime, 'HH:mm') AS hm
FROM bid
