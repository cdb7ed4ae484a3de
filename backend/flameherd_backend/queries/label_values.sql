-- Values of one label, the largest first.
SELECT $label AS value, sum($table.value) AS total
FROM $source
WHERE $where AND positionCaseInsensitiveUTF8($label, {search:String}) > 0
GROUP BY value
ORDER BY total DESC, value
LIMIT {limit:UInt64}
