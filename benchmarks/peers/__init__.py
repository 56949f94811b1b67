"""Other engines, each in an environment of its own: `<name>_workloads.py` runs there, and so do modules like it.

Such a module gives `benchmarks.peers.command.main` an implementation of `benchmarks.workloads.Engine`. It shares the
workloads with us, and nothing else: of the benchmarks it imports only what needs the standard library and psutil.
"""
