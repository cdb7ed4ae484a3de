-- As timeline_minutes, from samples: what a window has of a minute at its edges.
SELECT $series AS series, intDiv(toUnixTimestamp64Milli(ts) - {start:Int64}, {step:Int64}) AS bucket,
       sum(samples.value) AS value
FROM $source
WHERE $where
GROUP BY series, bucket
