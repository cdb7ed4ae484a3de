-- What is stored, of what the viewer may see.
SELECT count() AS samples, toUnixTimestamp64Milli(min(ts)) AS oldest, toUnixTimestamp64Milli(max(ts)) AS newest
FROM samples
WHERE $where
