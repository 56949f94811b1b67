"""What is given to a call in a test, and what is seen of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from xdb_sdk._attributes import decode_attributes
from xdb_sdk._command import CommandResults
from xdb_sdk._definition import ProcessDefinition
from xdb_sdk.client import QueueMessage
from xdb_sdk.protocol import (
    ColumnValue,
    CommandResultsBody,
    DatabaseErrorInfo,
    ExecuteAnswer,
    InternalQueueResult,
    Json,
    LoadedData,
    LoadedTable,
    Message,
    ReceivedMessage,
    RecoverFrom,
    RpcAnswer,
    TimerResult,
    WaitUntilAnswer,
)

ReturnedT_co = TypeVar("ReturnedT_co", covariant=True)

Answer: TypeAlias = WaitUntilAnswer | ExecuteAnswer | RpcAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class CallConditions:
    """What a method can learn of its call beside its data.

    Attributes:
        number: Which execution of the state it is, from 1.
        attempt: Which attempt, from 1.
        timeout: How long the call may take; what `ctx.deadline` counts down from. Nothing cuts the call off.
        is_stopped: What `ctx.is_stopped()` says.
        recover_from: The exhausted state execution that the state stands in for.
        last_database_error: What the user's database said to the attempt before.
    """

    number: int = 1
    attempt: int = 1
    timeout: timedelta = timedelta(seconds=30)
    is_stopped: bool = False
    recover_from: RecoverFrom | None = None
    last_database_error: DatabaseErrorInfo | None = None


DEFAULT_CONDITIONS = CallConditions()
"""Those of a first attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport(Generic[ReturnedT_co]):
    """What a method returned and did.

    Attributes:
        returned: The CommandRequest of a wait_until, the StateDecision of an execute, the result of an RPC.
        attributes: The data attributes that it wrote, by name.
        messages: What it published, in order; each queue by its name.
        next_state_ids: The states that it starts, in order.
        answer: What a worker would have sent to the server: everything else, such as recorded events.
    """

    returned: ReturnedT_co
    attributes: Mapping[str, Any]
    messages: tuple[QueueMessage, ...]
    next_state_ids: tuple[str, ...]
    answer: Answer

    @property
    def state_locals(self) -> Mapping[str, Json]:
        """What a wait_until left for its execute, as JSON; empty for other methods."""
        return self.answer.state_locals if isinstance(self.answer, WaitUntilAnswer) else {}


def report_of(definition: ProcessDefinition, returned: Any, answer: Answer) -> CallReport[Any]:
    """Read what a call did out of its answer."""
    movements = () if isinstance(answer, WaitUntilAnswer) else answer.state_decision.next_states
    return CallReport(
        returned=returned,
        attributes=decoded_attributes(definition, written_columns(answer), answer.write_local_attributes),
        messages=tuple(_queue_message(definition, message) for message in answer.publish),
        next_state_ids=tuple(movement.state_id for movement in movements),
        answer=answer,
    )


def written_columns(answer: Answer) -> dict[str, ColumnValue]:
    """Give what was written into the mapped row."""
    return {column: value for table in answer.write_tables for column, value in table.columns.items()}


def decoded_attributes(
    definition: ProcessDefinition, columns: Mapping[str, ColumnValue], local: Mapping[str, Json]
) -> dict[str, Any]:
    """Decode data attributes, by name."""
    table = definition.table
    tables = (LoadedTable(table_name=table.table_name, columns=columns),) if table else ()
    return decode_attributes(definition, LoadedData(tables=tables, local_attributes=local))


def _queue_message(definition: ProcessDefinition, message: Message) -> QueueMessage:
    name = message.queue_name
    value = definition.encoder.decode(message.payload, definition.queue(name).type_hint, f"message of queue {name!r}")
    return QueueMessage(queue=name, value=value, dedup_id=message.message_id)


def command_results_body(definition: ProcessDefinition, results: CommandResults) -> CommandResultsBody:
    """Write results of commands as a server would send them, messages by the types of their queues."""
    return CommandResultsBody(
        timer_results=tuple(TimerResult(command_id=r.command_id, status=r.status) for r in results.timer_commands),
        internal_queue_results=tuple(
            InternalQueueResult(
                command_id=result.command_id,
                queue_name=result.queue_name,
                status=result.status,
                messages=tuple(_received(definition, result.queue_name, value) for value in result.values),
            )
            for result in results.internal_queue_commands
        ),
        wait_until_api_succeeded=results.wait_until_api_succeeded,
    )


def _received(definition: ProcessDefinition, queue_name: str, value: Any) -> ReceivedMessage:
    type_hint = definition.queue(queue_name).type_hint
    return ReceivedMessage(payload=definition.encoder.encode(value, type_hint, f"message of queue {queue_name!r}"))
