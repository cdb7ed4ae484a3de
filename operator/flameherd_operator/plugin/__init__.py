"""`kubectl flameherd`: what the cluster profiles, why, at what cost, and what is wrong.

cli        the command line and what its errors look like
commands   status, explain, doctor, dry_run: one module each; each gives data and how to show it
cluster    what is read of a cluster, at one moment
reader     by kubectl, or in a pod by its account
assign     which policy samples which container
output     tables and JSON

It reads and never writes. Who wins, what a policy comes to and what it may are the operator's own
functions and the operator's own words in `status`. Importing it imports neither kopf nor the
`kubernetes` package: `kubectl` itself does the talking, with whatever login it has.
"""
