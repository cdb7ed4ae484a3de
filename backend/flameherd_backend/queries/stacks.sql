-- Distinct stacks of a selection with their sums, the largest first.
SELECT stack_id, sum(samples.value) AS value, sum(samples.count) AS count, any(samples.unit) AS unit
FROM samples
WHERE $where
GROUP BY stack_id
ORDER BY value DESC, stack_id
LIMIT {max_stacks:UInt64}
