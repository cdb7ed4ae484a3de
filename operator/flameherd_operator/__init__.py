"""Turns the policies of a cluster into agents on its nodes, and tells what became of them.

cli         the command line; wires the rest
handlers    what is watched (kopf: indexes and events only)
reconcile   the one loop: everything is worked out anew, what differs is written
lease       one operator at a time
receive/    the HTTPS server that agents report to
client      the API server: server-side apply, reads that no watch does
render/     observed state → desired state; pure
status      what became of each object → its conditions; pure
status_reported   the part of it that agents report; pure
reports     the latest report of every node
aggregate   reports of all nodes → what they come to for each policy; pure
defaults    the objects that an installation's values ask for
ceilings    which limits and defaults hold in a namespace; pure
observed, verdict, settings, errors   plain data
"""
