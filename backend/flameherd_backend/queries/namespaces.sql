-- Namespaces that there are samples of.
SELECT DISTINCT namespace FROM timeline
