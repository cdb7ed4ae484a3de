-- What the frames of some stacks say of functions: where they begin, and whether they are without a name. Frames of before
-- migration 2 say nothing.
SELECT function, minIf(line, line > 0) AS line, max(bare) AS unnamed
FROM (
    SELECT pair.1 AS function, pair.2 AS line, bare
    FROM (
        SELECT arrayJoin(arrayZip(functions, arrayResize(first_lines, length(functions)))) AS pair, empty(lines) AS bare
        FROM frames
        WHERE frame_id IN (SELECT arrayJoin(frames) FROM stacks WHERE stack_id IN {stacks:Array(UInt64)})
    )
)
WHERE function IN {ids:Array(UInt64)}
GROUP BY function
