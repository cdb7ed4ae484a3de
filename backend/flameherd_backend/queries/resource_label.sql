-- Samples with one attribute of their resource beside them.
samples ANY LEFT JOIN (
    SELECT resource_id, any(attributes[$key]) AS of_resource FROM resources GROUP BY resource_id
) AS r ON samples.resource_id = r.resource_id
