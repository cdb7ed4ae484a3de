-- Functions of stacks, leaf first. Ids come from visible samples only.
SELECT stack_id, any(functions) AS functions FROM stacks WHERE stack_id IN {ids:Array(UInt64)} GROUP BY stack_id
