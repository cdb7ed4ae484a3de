-- Distinct stacks of a selection with their sums, the largest first, and their functions, leaf first.
SELECT chosen.stack_id AS stack_id, chosen.value AS value, chosen.count AS count, found.functions AS functions
FROM (
    SELECT stack_id, sum(samples.value) AS value, sum(samples.count) AS count
    FROM samples
    WHERE $where
    GROUP BY stack_id
    ORDER BY value DESC, stack_id
    LIMIT {max_stacks:UInt64}
) AS chosen
ANY LEFT JOIN (
    SELECT stack_id, functions
    FROM stacks
    WHERE stack_id IN (SELECT stack_id FROM samples WHERE $where)
) AS found ON chosen.stack_id = found.stack_id
