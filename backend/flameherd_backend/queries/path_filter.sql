-- Stacks that begin, at the root, with some functions.
stack_id IN (
    SELECT stack_id FROM stacks
    WHERE length(functions) >= $count AND arraySlice(functions, -toInt64($count)) = $leaf_first
)
