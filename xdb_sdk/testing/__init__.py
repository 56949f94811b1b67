"""A kit for unit tests of processes: their methods are called one by one, without a server and without a worker."""

from xdb_sdk.testing._report import CallConditions, CallReport
from xdb_sdk.testing._tester import ProcessTester

__all__ = ["CallConditions", "CallReport", "ProcessTester"]
