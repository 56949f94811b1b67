"""The service API as a stranger without the SDK sees it: bytes out, status and JSON back."""

from collections.abc import Mapping
from typing import Any

import httpx

from tests.support.system import SERVER_URL, WORKER_URL, System
from xdb_sdk.protocol import SERVICE_PREFIX


async def request(system: System, method: str, path: str, body: bytes = b"") -> httpx.Response:
    """Send any request to the server."""
    transport = httpx.ASGITransport(system.server.api)
    async with httpx.AsyncClient(transport=transport, base_url=SERVER_URL) as http:
        return await http.request(method, path, content=body)


async def post(system: System, operation: str, body: Mapping[str, Any] | bytes) -> httpx.Response:
    """Post JSON, or bytes that may be none, to an operation."""
    content = body if isinstance(body, bytes) else httpx.Request("POST", SERVER_URL, json=body).content
    return await request(system, "POST", SERVICE_PREFIX + operation, content)


def start_of(process_type: str, process_id: str = "p", **fields: Any) -> dict[str, Any]:
    """Give the smallest body of a start, and more fields."""
    return {"processId": process_id, "processType": process_type, "workerUrl": WORKER_URL, **fields}


def nothing_was_started(system: System) -> bool:
    """Say whether the system tables know no execution and no state."""
    tables = ("xdb_sys_process_execution", "xdb_sys_async_state_execution")
    return all(system.sql(f"SELECT * FROM {table}") == [] for table in tables)
