-- Types of profiles with samples in a window, by the minute.
SELECT type, any(unit) AS unit, sum(timeline.value) AS total
FROM timeline
WHERE $where
GROUP BY type
HAVING total > 0
ORDER BY total DESC, type
LIMIT 1000
