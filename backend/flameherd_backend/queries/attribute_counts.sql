-- How many distinct values each attribute has: those of resources that samples of the selection have, and of samples.
SELECT name, sum(values_of) AS number
FROM (
    SELECT arrayJoin(mapKeys(resources.attributes)) AS name, uniqExact(resources.attributes[name]) AS values_of
    FROM resources
    WHERE resource_id IN (SELECT resource_id FROM samples WHERE $where)
    GROUP BY name
    UNION ALL
    SELECT arrayJoin(mapKeys(samples.attributes)) AS name, uniqExact(samples.attributes[name]) AS values_of
    FROM samples
    WHERE $where
    GROUP BY name
)
GROUP BY name
ORDER BY name
LIMIT 1000
