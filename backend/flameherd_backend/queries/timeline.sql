-- Sums over buckets. A value that covers a span is spread over it: up to an edge it has come to value × share of the
-- span before the edge, rounded; differences of that add up to the value exactly. What lies beyond the last bucket
-- counts there.
SELECT series, bucket,
       sum(toInt64(round(value * least(1., (bucket + 1 = {buckets:Int64} ? 1. : ((bucket + 1) * {step_ns:Int64} - at) / span))))
           - toInt64(round(value * greatest(0., (bucket * {step_ns:Int64} - at) / span)))) AS value
FROM (
    SELECT series, value, at, span,
           arrayJoin(range(toUInt64(first), toUInt64(least(last, {buckets:Int64} - 1)) + 1)) AS bucket
    FROM (
        SELECT $series AS series, samples.value AS value, toFloat64(greatest(duration_ns, 1)) AS span,
               toUnixTimestamp64Nano(ts) - {start_ns:Int64} AS at,
               greatest(0, least(intDiv(at, {step_ns:Int64}), {buckets:Int64} - 1)) AS first,
               greatest(first, intDiv(at + toInt64(least(duration_ns, {window_ns:UInt64})) - 1, {step_ns:Int64})) AS last
        FROM $source
        WHERE $where
    )
)
GROUP BY series, bucket
