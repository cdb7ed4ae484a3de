-- Details of some stacks of a selection.
SELECT stack_id, sum(samples.value) AS value, sum(samples.count) AS count, toUnixTimestamp64Milli(min(ts)) AS first,
       toUnixTimestamp64Milli(max(ts)) AS last, $labels
FROM samples
WHERE $where AND stack_id IN {ids:Array(UInt64)}
GROUP BY stack_id
