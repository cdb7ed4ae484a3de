"""The whole desired state of the cluster from what was observed. Pure.

exports   an `export` and its Secrets → an agent's endpoint and the files that it names
slots     policies → slots, each with a verdict
shards    slots → AgentConfigs in ConfigMaps
secrets   files → the agents' Secret
serving   the status server's certificate → what keeps it, and what agents trust
agents    pools → DaemonSets
desired   all of these, and what should go
"""
