"""Other engines, each in an environment of its own: one module a peer, run with that environment's interpreter.

A peer's module implements `benchmarks.workloads.Engine`, takes a workload and a number of executions as arguments, and
prints one `Measurement` as the last line of its output. It shares the workloads with us, and nothing else.
"""
