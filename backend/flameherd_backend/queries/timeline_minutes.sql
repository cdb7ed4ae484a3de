-- Sums over buckets of whole minutes.
SELECT $series AS series, intDiv(toInt64(toUnixTimestamp(minute)) * 1000 - {start:Int64}, {step:Int64}) AS bucket,
       sum(timeline.value) AS value
FROM timeline
WHERE $where
GROUP BY series, bucket
