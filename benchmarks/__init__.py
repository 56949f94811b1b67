"""Measures the whole system as it is run: a server, a worker and a client, each its own process, over real HTTP."""
