"""What the `xdb process` commands print, for people and for programs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xdb_sdk.client import ProcessInfo, ProcessSummary, StateExecutionInfo


def print_json(value: Any) -> None:
    """Print a value as JSON: dataclasses as objects, instants in ISO 8601."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_to_json))


def compact(value: Any) -> str:
    """Write a JSON value in one line."""
    return json.dumps(value, ensure_ascii=False)


def print_process(info: "ProcessInfo") -> None:
    """Print all about an execution."""
    facts = {
        "process": info.process_id,
        "execution": info.process_execution_id,
        "type": info.process_type,
        "namespace": info.namespace,
        "status": info.status + ("" if info.is_current else " (not the current execution)"),
        "reason": info.reason,
        "error": f"{info.error.error_type}: {info.error.error_message}" if info.error else None,
        "started": show_instant(info.started_at),
        "closed": show_instant(info.closed_at),
        "times out": show_instant(info.timeout_at),
        "worker": info.worker_url,
        "row": f"{info.table_name} {compact(info.object_id)}" if info.table_name else None,
    }
    _print_facts(facts)
    for output in info.outputs:
        click.echo(f"output of {output.state_execution_id or 'an RPC'}: {compact(output.output)}")
    for state in info.states:
        _print_state(state)
    if info.omitted_states:
        click.echo(f"closed states not shown: {info.omitted_states}")
    for queue, size in sorted((info.queue_sizes or {}).items()):
        click.echo(f"queue {queue}: {size} waiting")


def print_processes(processes: Iterable["ProcessSummary"]) -> None:
    """Print a table of executions, as they come."""
    row = "{:<24}  {:<10}  {:<24}  {:<30}  {}"
    click.echo(row.format("STARTED", "STATUS", "TYPE", "PROCESS", "EXECUTION"))
    for each in processes:
        click.echo(
            row.format(
                show_instant(each.started_at) or "",
                each.status,
                each.process_type,
                each.process_id,
                each.process_execution_id,
            )
        )


def show_instant(instant: datetime | None) -> str | None:
    """Write an instant in UTC with milliseconds."""
    return None if instant is None else instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print_state(state: "StateExecutionInfo") -> None:
    click.echo(f"state {state.state_id}-{state.number}: {', '.join(_state_facts(state))}")
    for timer in state.timers:
        click.echo(f"  timer {timer.command_id or ''}: {timer.status}, fires at {show_instant(timer.fire_at)}")
    for command in state.queue_commands:
        click.echo(f"  queue {command.queue_name}: {command.status}, {command.received_count} received")
    failure = state.last_failure
    if failure is not None:
        first_line = failure.error_message.partition("\n")[0]
        click.echo(f"  attempt {failure.attempt} of {failure.api} failed: {failure.error_type}: {first_line}")


def _state_facts(state: "StateExecutionInfo") -> Iterator[str]:
    yield state.status
    yield f"wait_until {state.wait_until_status}"
    yield f"execute {state.execute_status}"
    if state.attempt > 1:
        yield f"attempt {state.attempt}"
    if state.next_attempt_at is not None:
        yield f"tried again at {show_instant(state.next_attempt_at)}"


def _print_facts(facts: Mapping[str, str | None]) -> None:
    for name, text in facts.items():
        if text:
            click.echo(f"{name + ':':<11} {text}")


def _to_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return show_instant(value)
    return asdict(value)
