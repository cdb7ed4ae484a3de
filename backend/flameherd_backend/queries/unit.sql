-- The unit of a type, whenever it was sent.
SELECT any(unit) AS unit FROM timeline WHERE $where
