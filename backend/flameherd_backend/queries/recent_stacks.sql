-- When stacks of a selection were seen last.
SELECT stack_id, toUnixTimestamp64Milli(max(ts)) AS last
FROM samples
WHERE $where
GROUP BY stack_id
ORDER BY last DESC, stack_id
LIMIT {max_stacks:UInt64}
