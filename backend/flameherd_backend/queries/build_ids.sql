-- Build ids of the mappings that visible stacks have frames in; several builds of one path give several rows.
SELECT mapping, any(if(gnu_build_id != '', gnu_build_id, if(go_build_id != '', go_build_id, htlhash))) AS build_id
FROM frames
WHERE mapping != '' AND frame_id IN (
    SELECT arrayJoin(frames) FROM stacks WHERE stack_id IN (SELECT stack_id FROM samples WHERE $where)
)
GROUP BY mapping, gnu_build_id, go_build_id, htlhash
