-- How many distinct values each column label has.
SELECT $counts
FROM $table
WHERE $where
