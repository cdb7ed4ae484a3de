"""Takes the reports of agents: an HTTPS server of the operator that holds the Lease.

keys      its certificate, which it makes itself and hands to agents
tokens    whose request it is: TokenReview, remembered
server    one request → one report, within bounds
endpoint  the Service's only endpoint is this process
serving   certificate and endpoint, kept up through the API server
"""
