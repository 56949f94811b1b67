"""A process with one of each: a wait for a timer or a message, an attribute, an RPC. `xdb worker` serves it too."""

from datetime import timedelta

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    Registry,
    StateDecision,
    StateSchema,
    TimerCommand,
    Worker,
    data_attribute,
    internal_queue,
    rpc,
)


class Wait(AsyncState[str]):
    """Waits for a name, and greets it with its input."""

    def wait_until(self, input: str) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(hours=1)), InternalQueueCommand.by_name(Greeter.names)
        )

    def execute(self, input: str, command_results: CommandResults, persistence: Persistence) -> StateDecision:
        name = command_results.internal_queue_commands[0].value
        if name == "nobody":
            return StateDecision.force_fail_process(message="there is nobody")
        persistence.set_data_attribute(Greeter.last, name)
        return StateDecision.graceful_complete_process(f"{input}, {name}!")


class Greeter(ObjectProcess):
    """Greets whoever comes first."""

    last = data_attribute(str)
    names = internal_queue(str)

    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(Wait())

    @rpc(read_only=True)
    def echo(self, input: str) -> str:
        if input == "fail":
            raise LookupError("there is no echo")
        return input

    @rpc
    def keep(self, input: str, persistence: Persistence) -> str:
        persistence.set_data_attribute(Greeter.last, input)
        return input


registry = Registry()
registry.add_processes(Greeter)
app = Worker(registry).app
