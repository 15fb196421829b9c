-- Channel ids: known channels by name, others by what their page says; bids without either are left out.
SELECT auction, bidder, price, channel, channel_id
FROM (
    SELECT *, CASE lower(channel)
        WHEN 'apple' THEN '0'
        WHEN 'google' THEN '1'
        WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3'
        ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')
    END AS channel_id
    FROM bid
)
WHERE channel_id IS NOT NULL
