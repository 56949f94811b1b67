"""What is asked of the history of executions, from synchronous code."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeVar

from xdb_sdk._options import StateReference
from xdb_sdk.client._exchange import Plan
from xdb_sdk.client._operations import ProcessRef
from xdb_sdk.client._operator_plans import OperatorPlans
from xdb_sdk.client._reset import ResetOptions
from xdb_sdk.client._results import HistoryEvent, ResetResult
from xdb_sdk.protocol import GetHistoryRequest

Result = TypeVar("Result")


class SyncHistoryCalls(ABC):
    """The calls that read a history, or go on from a point of it."""

    _operations: OperatorPlans

    @abstractmethod
    def _run(self, plan: Plan[Result]) -> Result:
        """Carry out a plan."""

    @abstractmethod
    def _state_id_of(self, state: StateReference) -> str:
        """Give the id of a state."""

    def get_history(
        self,
        process_id: str,
        *,
        after_event_id: int = 0,
        process_execution_id: str | None = None,
        page_size: int = 100,
    ) -> Iterator[HistoryEvent]:
        """Read what has happened to an execution, open or closed, one request a page as you iterate.

        Args:
            process_id: Which process; its execution that is current at the first page, unless
                `process_execution_id` names another.
            after_event_id: Begin with the event after this one.
            process_execution_id: Read about exactly this execution.
            page_size: How many events come with a request, 1 to 1000.

        Returns:
            Events in their order, their ids without gaps; none if histories were off when the execution started.

        Raises:
            ProcessNotFoundError: There is no such process.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._history(self._operations.history_request(ref, after_event_id, page_size))

    def _history(self, request: GetHistoryRequest | None) -> Iterator[HistoryEvent]:
        while request is not None:
            events, request = self._run(self._operations.history_page(request))
            yield from events

    def reset_process(
        self,
        process_id: str,
        options: ResetOptions,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> ResetResult:
        """Go on from a point of an execution's history, in a new execution of the same process id.

        The new one has the states, messages, attributes of the process and timers that the other one had at the point,
        and a timeout of its own; the other one is terminated if it runs. What clients published and what RPCs changed
        after the point is applied again, unless `options` says otherwise. If the other one is paused now, so is
        the new one. **Rows of your tables are not rolled back**: they stay as they are, so states that run again must
        bear to find what they have written before.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            options: From which point.
            process_execution_id: Reset exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessAlreadyStartedError: Another execution of the process id is running.
            ClientSideError: There is no such point (RESET_POINT_NOT_FOUND), or the history is off or does not begin
                with the start (HISTORY_INCOMPLETE).
        """
        state_id = None if options.state is None else self._state_id_of(options.state)
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._operations.reset(ref, options, state_id, request_id))
