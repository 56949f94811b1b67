"""Greets somebody after two seconds: a process, its worker, and a client that starts it."""

from datetime import timedelta

from xdb_sdk import (
    AsyncState,
    Client,
    ClientOptions,
    CommandRequest,
    ObjectProcess,
    Registry,
    StateDecision,
    TimerCommand,
    Worker,
)


class GreetState(AsyncState[str]):
    """Wait, then greet."""

    def wait_until(self) -> CommandRequest:
        """Let two seconds go by; it might as well be two months."""
        return CommandRequest.for_all_command_completed(TimerCommand.timer_command_by_duration(timedelta(seconds=2)))

    def execute(self, input: str) -> StateDecision:
        """End the process with a greeting."""
        return StateDecision.graceful_complete_process(f"Hello, {input}!")


class GreetingProcess(ObjectProcess):
    """One state, no data."""

    starting_state = GreetState


registry = Registry()
registry.add_process(GreetingProcess)

app = Worker(registry)


def greet(name: str, options: ClientOptions | None = None) -> str:
    """Start a process and wait for its output. Without options, server and worker are on this machine."""
    with Client(registry, options) as client:
        process_id = f"greeting-{name}"
        client.start_process(process_id, GreetingProcess, name)
        return client.wait_for_process_completion(process_id, str, timeout=timedelta(seconds=30))


if __name__ == "__main__":
    print(greet("Ada"))
