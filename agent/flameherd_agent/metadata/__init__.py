"""Whose samples these are: cgroup → container, process attributes, resource attributes of a
profile.

    cgroup     the text of /proc/PID/cgroup, or a cgroup path → container id and pod uid
    hierarchy  where the kernel side's cgroup ids live in the file system
    process    bounded reads of /proc/PID
    resource   the above → OpenTelemetry resource attributes, cached
"""
