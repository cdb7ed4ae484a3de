-- What functions are called. Ids come from stacks of visible samples only.
SELECT function_id, any(name) AS name, any(file) AS file, any(mapping) AS mapping, any(kind) AS kind,
       min(line) AS line, max(unnamed) AS unnamed
FROM functions
WHERE function_id IN {ids:Array(UInt64)}
GROUP BY function_id
