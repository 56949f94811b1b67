"""The worker of the workloads: xdb worker benchmarks.worker:app"""

from benchmarks.processes import registry
from xdb_sdk import Worker

app = Worker(registry).app
