-- Where the functions of a frame begin, as its sender says: `functions` has the smallest of all senders, which one who may
-- not see them all must not be told.

ALTER TABLE frames ADD COLUMN IF NOT EXISTS first_lines Array(UInt32) AFTER lines;
