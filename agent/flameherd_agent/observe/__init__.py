"""How the agent is watched: metrics text, a small HTTP server, logs.

    metrics   a snapshot of numbers → Prometheus text
    usage     what the agent itself costs
    server    /metrics, /healthz, /status on one thread
    logs      logfmt on stderr that says one thing once

Nothing here knows what is measured: the app hands in callbacks.
"""
