"""Tells the operator how this node fares: about once a minute, and when something flips.

    totals    what each policy has cost and got, since the start
    costs     the same for the loop, and the rates that keep CPU budgets
    reporter  totals → a report of the time since the last one that was taken; when to send it
    push      one HTTPS request, on a thread of its own

The agent never writes to the API server. An operator that is away costs nothing: the next report
that is taken covers the time in between.
"""
