"""The one model of Flameherd's policies and of what agents are told.

    durations, quantities   values with units that are written as text
    selectors               label selectors, evaluated as Kubernetes does
    endpoints               which endpoints an export may go to
    policies, pools         ProfilingPolicy, ClusterProfilingPolicy; AgentPool
    agent_config            AgentConfig: what agents are told
    compile                 policies of one machine → AgentConfig
    decode                  plain data → structs, with every problem named by its field
    load                    YAML and JSON files → the above

Pure data: nothing here talks to a kernel, a cluster or the network, and it imports nothing of ours.
"""
