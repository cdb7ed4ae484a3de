"""The agent in a cluster: what it is told, which pods run on its node, and which slot samples each.

    API server ──http2──▶ reflectors ──queue──▶ NodeView ──▶ Service: configuration, selection, labels
                (one thread, one connection)      ▲ cgroup tree (inotify)

    account     where the API server is, and who we are: the pod's ServiceAccount
    http2       one connection: requests, answers by stream
    reflector   one list-then-watch, as a state machine without I/O
    follower    the thread that drives connection and reflectors
    objects     what is read of pods and ConfigMaps
    pods        a pod → OpenTelemetry resource attributes
    shards      ConfigMaps → slots of this node, held against the ceilings again
    selection   slots × pods × cgroups → slot of each cgroup, and who got what (pure)
    node        `NodeView`: the above, for the agent's one loop

Who wants to know how each policy fares here (status, cost) asks `NodeView.coverage()`: {policy:
`Coverage`} with pods matched and profiled, containers matched, profiled and overlapped; policies
that match nothing here are not in it. `NodeView.versions()` has the version of each shard that is
carried out, `NodeView.problems()` what was ignored or refused, in words. All three are for the
agent's loop, not for other threads.
"""
