"""The worker: runs the user's states and RPC methods for xdb servers."""

from xdb_sdk.worker._app import Worker
from xdb_sdk.worker._failure import WorkerCallError, WorkerResponse
from xdb_sdk.worker._options import WorkerOptions
from xdb_sdk.worker._service import WorkerService

__all__ = ["Worker", "WorkerCallError", "WorkerOptions", "WorkerResponse", "WorkerService"]
