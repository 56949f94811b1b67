"""The rules of the event history: who has one, what is in it, and how long it may become (idempotency-and-shards D.10).

An execution has a history from its start on, or none for ever. It is written in the transaction of each change, and
never used to run a user's code again.
"""

from dataclasses import dataclass
from typing import Final

from server_stub.core.model import ProcessExecution
from server_stub.core.namespaces import NO_NAMESPACES, Namespaces
from server_stub.core.refusals import Refused
from xdb_sdk.protocol import ErrorSubType

_WARNS_AT_ONE_OF: Final = 5
"""A history is said to be long at this part of what it may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    """What is recorded, and how much.

    Attributes:
        off_in: Namespaces whose executions start without a history.
        values_in: Namespaces in which the values of the user's columns are recorded, too.
        max_events: With how many events a history is full.
        max_bytes: With how many bytes of data it is full.
    """

    off_in: Namespaces = NO_NAMESPACES
    values_in: Namespaces = NO_NAMESPACES
    max_events: int = 50_000
    max_bytes: int = 50 * 1024 * 1024

    def is_full(self, process: ProcessExecution) -> bool:
        """Say whether an execution has as long a history as it may have."""
        return process.next_event_id > self.max_events or process.history_bytes >= self.max_bytes

    def becomes_long(self, process: ProcessExecution, size: int) -> bool:
        """Say whether with an event of this size somebody should look at the execution, as with none before."""
        long_events, long_bytes = self.max_events // _WARNS_AT_ONE_OF, self.max_bytes // _WARNS_AT_ONE_OF
        was_long = process.next_event_id > long_events or process.history_bytes >= long_bytes
        return not was_long and (process.next_event_id == long_events or process.history_bytes + size >= long_bytes)

    def require_room(self, process: ProcessExecution) -> None:
        """Refuse a client's change to an execution whose history is full; it can still be stopped.

        Raises:
            Refused: HISTORY_LIMIT.
        """
        if self.is_full(process):
            raise Refused(
                ErrorSubType.HISTORY_LIMIT,
                f"{told_length(process)}, which is full; nothing was changed. Stop the execution, or let it end, and "
                "go on with another one",
                process.process_execution_id,
            )


DEFAULT_RULES: Final = HistoryRules()


def told_length(process: ProcessExecution) -> str:
    """Say how long a history is."""
    return (
        f"process {process.process_id!r} ({process.process_execution_id}) has a history of "
        f"{process.next_event_id - 1} events and {process.history_bytes} bytes"
    )
