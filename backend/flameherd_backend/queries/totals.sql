-- Sums of a selection, and its unit.
SELECT sum(samples.value) AS value, sum(samples.count) AS count, any(unit) AS unit
FROM samples
WHERE $where
