"""The smallest good request of each operation."""

from typing import Any

from xdb_sdk.protocol import SERVICE_PREFIX

REQUESTS: dict[str, dict[str, Any]] = {
    "start": {"processId": "p-1", "processType": "Signup", "workerUrl": "http://worker"},
    "stop": {"processId": "p-1"},
    "describe": {"processId": "p-1"},
    "list": {},
    "publish": {"processId": "p-1", "messages": [{"queueName": "q", "payload": 1}]},
    "rpc": {"processId": "p-1", "rpcName": "verify"},
    "wait-for-completion": {"processId": "p-1"},
    "wait-for-state-completion": {"processId": "p-1", "stateId": "A"},
    "get-attributes": {"processId": "p-1"},
    "set-attributes": {"processId": "p-1"},
    "skip-timer": {"processId": "p-1", "stateId": "A"},
    "update-config": {"processId": "p-1"},
}
OF_A_PROCESS = sorted(REQUESTS.keys() - {"list", "start"})


def path_of(operation: str) -> str:
    """Give the path that an operation is posted to."""
    return SERVICE_PREFIX + operation
