"""What is compiled from a process class, and every mistake that is found on the way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import pytest

from tests.unit.sdk.compiling import DoneState, definition_of, problems_of, process_with
from tests.unit.sdk.signup import DecoratedSignup, Form, SchemaSignup, SubmitState, VerifyState
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    CommandResults,
    CommunicationMethod,
    CommunicationSchema,
    InvalidArgumentError,
    ObjectProcess,
    Persistence,
    PersistenceField,
    PersistenceLoadingPolicy,
    PersistenceSchema,
    ProcessContext,
    ProcessDefinitionError,
    RetryPolicy,
    StateDecision,
    StateDef,
    StateSchema,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)
from xdb_sdk._definition import ParameterRole

T = TypeVar("T")


class Waiting(AsyncState[None]):
    """Defines wait_until."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class WaitingChild(Waiting):
    """Inherits it."""


class WaitingGrandchild(WaitingChild):
    """Inherits it from a class in the middle."""

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class DoneChild(DoneState):
    """Inherits no wait_until."""


class DoneChildThatWaits(DoneState):
    """Adds it."""

    async def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()


@pytest.mark.parametrize(
    ("state_class", "is_skipped"),
    [
        (Waiting, False),
        (WaitingChild, False),
        (WaitingGrandchild, False),
        (DoneState, True),
        (DoneChild, True),
        (DoneChildThatWaits, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_wait_until_is_skipped_only_if_no_class_defines_it(
    state_class: type[AsyncState[None]], is_skipped: bool
) -> None:
    compiled = definition_of(process_with(state_class)).state_of(state_class)

    assert compiled.wire_options.skip_wait_until is is_skipped
    assert (compiled.wait_until is None) is is_skipped


def test_both_forms_of_a_process_compile_to_the_same() -> None:
    by_schema, decorated = definition_of(SchemaSignup), definition_of(DecoratedSignup)

    for definition in (by_schema, decorated):
        assert definition.process_type == "Signup"
        assert list(definition.states) == ["SubmitState", "VerifyState"]
        assert definition.starting_state is not None
        assert definition.starting_state.state_class is SubmitState
    assert by_schema.attributes == decorated.attributes
    assert by_schema.queues == decorated.queues
    assert by_schema.table == decorated.table
    assert by_schema.full_read() == decorated.full_read()
    rpcs = [replace(d.rpcs["verify"].method, function=len) for d in (by_schema, decorated)]
    assert rpcs[0] == rpcs[1]


def test_a_process_type_is_the_simple_name_of_its_class() -> None:
    class Main(ObjectProcess):
        pass

    Main.__module__ = "__main__"

    assert definition_of(Main).process_type == "Main"


def test_a_process_without_states_is_possible() -> None:
    definition = definition_of(type("Empty", (ObjectProcess,), {}))

    assert definition.starting_state is None
    assert not definition.states


def test_methods_are_given_only_what_they_declare_in_their_order() -> None:
    class Some(AsyncState[int]):
        async def execute(
            self, persistence: Persistence, amount: int, results: CommandResults, _ctx: ProcessContext
        ) -> StateDecision:
            return StateDecision.dead_end()

    method = definition_of(process_with(Some)).state_of(Some).execute

    assert method.parameter_names == ("persistence", "amount", "results", "_ctx")
    assert method.roles == (
        ParameterRole.PERSISTENCE,
        ParameterRole.INPUT,
        ParameterRole.COMMAND_RESULTS,
        ParameterRole.CONTEXT,
    )
    assert method.is_async
    assert method.input_type is int


class Step(AsyncState[T], Generic[T]):
    """A generic state."""

    def execute(self, input: T) -> StateDecision:
        return StateDecision.dead_end()


class ListStep(Step[list[T]]):
    """Half of the type is left open."""


class IntListStep(ListStep[int]):
    """All of it is said."""


class Annotated(AsyncState):  # type: ignore[type-arg]  # the parameter says it
    """Says its input by the parameter alone."""

    def execute(self, amount: "int | None") -> StateDecision:
        return StateDecision.dead_end()


class Silent(AsyncState):  # type: ignore[type-arg]  # nobody says it
    """Says nothing of its input."""

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


@pytest.mark.parametrize(
    ("listed", "input_type"),
    [
        pytest.param(SubmitState, type(None), id="no input"),
        pytest.param(IntListStep, list[int], id="argument of a base class"),
        pytest.param(Step[int], int, id="argument of the class"),
        pytest.param(Step[str](), str, id="argument of an instance's class"),
        pytest.param(Annotated, int | None, id="annotation of the parameter"),
        pytest.param(Silent, Any, id="nothing said"),
    ],
)
def test_the_input_type_is_found_in_the_class_or_in_the_parameter(listed: Any, input_type: Any) -> None:
    (compiled,) = definition_of(process_with(listed)).states.values()

    assert compiled.input_type == input_type


def test_two_types_of_one_input_are_refused() -> None:
    class Torn(AsyncState[int]):
        def execute(self, input: str) -> StateDecision:
            return StateDecision.dead_end()

    problems = problems_of(process_with(Torn))

    assert "Sample: Torn.execute: the input is annotated str, but elsewhere the class says int" in problems


def test_a_generic_state_needs_its_type() -> None:
    problems = problems_of(process_with(Step))

    assert "Sample: Step: input" in problems


def method(*, annotations: dict[str, Any], source: str) -> Callable[..., Any]:
    """Make a function that ruff and mypy would not let us write."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    function: Callable[..., Any] = namespace["f"]
    function.__annotations__.update(annotations)
    return function


@pytest.mark.parametrize(
    ("source", "annotations", "expected"),
    [
        ("def f(): ...", {}, "its first one must be `self`"),
        ("def f(self, *args): ...", {}, "'*args' cannot be filled by name"),
        ("def f(self, x, /): ...", {"x": int}, "cannot be filled by name"),
        ("def f(self, input=1): ...", {}, "parameter 'input' has a default, which is never used"),
        ("def f(self, comm): ...", {}, "parameter 'comm' has no type: annotate it if it is the input, or use one of"),
        ("def f(self, persistence): ...", {"persistence": str}, "annotate it Persistence, or rename it"),
        ("def f(self, a, b): ...", {"a": int, "b": int}, "parameters 'a' and 'b' both stand for the input"),
        ("def f(self, a): ...", {"a": "Missing"}, "the type of parameter 'a', 'Missing', cannot be resolved"),
        ("def f(self, results): ...", {"results": CommandResults}, "cannot be given command results: remove"),
        ("def f(self): yield", {}, "is a generator"),
        ("def f(self): ...", {"return": object()}, "return type"),
        ("def f(self, a): ...", {"a": Callable[[], int]}, "input"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("def") else "",
)
def test_a_method_that_cannot_be_called_is_refused(source: str, annotations: dict[str, Any], expected: str) -> None:
    sample = type("Sample", (ObjectProcess,), {"f": rpc(method(source=source, annotations=annotations))})

    problems = problems_of(sample)

    assert "Sample.f" in problems
    assert expected in problems


def test_types_for_type_checkers_only_may_mark_what_the_worker_gives() -> None:
    class Lazy(AsyncState[None]):
        def execute(self, persistence: "NotImported", ctx: "NotImported") -> StateDecision:  # type: ignore[name-defined] # noqa: F821
            return StateDecision.dead_end()

    execute = definition_of(process_with(Lazy)).state_of(Lazy).execute

    assert execute.roles == (ParameterRole.PERSISTENCE, ParameterRole.CONTEXT)


def test_execute_must_be_written_and_return_a_decision() -> None:
    class Idle(AsyncState[None]):
        pass

    class Forgetful(AsyncState[None]):
        def execute(self) -> None: ...  # type: ignore[override]  # that is the mistake

    problems = problems_of(process_with(Idle, Forgetful))

    assert "Sample: Idle does not define execute" in problems
    assert "Sample: Forgetful.execute must return a StateDecision" in problems


def test_all_problems_of_a_class_are_told_at_once() -> None:
    @process(table_name="t")
    class Broken(ObjectProcess):
        starting_state = DoneState
        states = (DoneState,)
        thing = data_attribute(Callable)
        twin = internal_queue(int, name="q")
        other_twin = internal_queue(int, name="q")
        scores = data_attribute(int, prefix="score_")

    problems = problems_of(Broken)

    assert "Broken: state id 'DoneState' is declared twice" in problems
    assert "Broken: data attribute 'thing'" in problems
    assert "Broken: internal queue 'q' is declared twice" in problems
    assert "Broken: table 't' is declared without a primary key" in problems
    assert "Broken: table 't' is declared without the type of its key" in problems
    assert "Broken: data attribute prefix 'score_' has no column in table 't'" in problems


def test_two_starting_states_are_refused() -> None:
    class Other(DoneState):
        pass

    class Sample(ObjectProcess):
        def get_async_states(self) -> StateSchema:
            return StateSchema.create(
                StateDef(DoneState(), is_starting_state=True), StateDef(Other(), is_starting_state=True)
            )

    assert "'DoneState' and 'Other' are both starting states" in problems_of(Sample)


def test_a_column_holds_one_attribute() -> None:
    @process(table_name="t", primary_key="id", primary_key_type=int)
    class Sample(ObjectProcess):
        a = data_attribute(int, column="c")
        b = data_attribute(int, column="c")

    assert "data attributes 'a' and 'b' share column 'c'" in problems_of(Sample)


def test_a_column_or_a_key_needs_a_table() -> None:
    @process(primary_key="id")
    class Sample(ObjectProcess):
        a = data_attribute(int, column="c")

    problems = problems_of(Sample)

    assert "data attribute 'a' names a column, but no table is mapped" in problems
    assert "a primary key is declared without a table" in problems


def test_reserved_and_impossible_names_are_refused() -> None:
    @state(state_id="_xdb_end")
    class Reserved(DoneState):
        pass

    class Sample(ObjectProcess):
        states = (Reserved,)
        a = data_attribute(int, name="a" * 256)
        q = internal_queue(int, name="_xdb_q")

    problems = problems_of(Sample)

    assert "state id '_xdb_end' begins with '_xdb_', which is reserved" in problems
    assert "internal queue '_xdb_q' begins with '_xdb_'" in problems
    assert "is 256 bytes long; at most 255 are possible" in problems


def test_declaring_in_both_forms_is_refused() -> None:
    @process(table_name="t", primary_key="id", primary_key_type=int)
    class Twice(ObjectProcess):
        form = data_attribute(Form)
        queue = internal_queue(None)
        starting_state = DoneState

        def get_async_states(self) -> StateSchema:
            return StateSchema.with_starting_state(DoneState())

        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema.create(PersistenceField.data_attribute_def("form", Form))

        def get_communication_schema(self) -> CommunicationSchema:
            return CommunicationSchema.create(CommunicationMethod.internal_queue_def("queue", None))

    problems = problems_of(Twice)

    assert "get_async_states() and the class attributes starting_state or states" in problems
    assert "get_persistence_schema() and data_attribute class attributes ('form')" in problems
    assert "get_persistence_schema() and a table in @process" in problems
    assert "get_communication_schema() and internal_queue class attributes ('queue')" in problems
    assert "keep one of the two forms" in problems


def test_state_options_in_both_forms_are_refused() -> None:
    @state(state_id="x")
    class Twice(DoneState):
        def get_state_options(self) -> AsyncStateOptions:
            return AsyncStateOptions(state_id="y")

    assert "Twice has @state and get_state_options()" in problems_of(process_with(Twice))


def test_unknown_names_in_options_are_found_with_the_nearest_known() -> None:
    @state(
        data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["frm"]),
    )
    class Loads(AsyncState[None]):
        def execute(self, persistence: Persistence) -> StateDecision:
            return StateDecision.dead_end()

    @state(
        execute_api_retry_policy=RetryPolicy(maximum_attempts=1),
        proceed_to_state_when_execute_retry_exhausted="Loadz",
    )
    class Recovers(DoneState):
        pass

    class Sample(ObjectProcess):
        form = data_attribute(Form)
        states = (Loads, Recovers)

        @rpc(data_attribute_loading_policy=PersistenceLoadingPolicy.partial(["form", "fort"]))
        def read(self, persistence: Persistence) -> str:
            return ""

    problems = problems_of(Sample)

    assert "state 'Loads' of Sample: Sample declares no data attribute 'frm'; did you mean 'form'?" in problems
    assert "state 'Recovers' of Sample: Sample declares no state 'Loadz'; did you mean 'Loads'?" in problems
    assert "Sample.read: Sample declares no data attribute 'fort'; did you mean 'form'?" in problems


def test_a_state_is_found_by_class_instance_and_overridden_id() -> None:
    @state(state_id="renamed")
    class Named(DoneState):
        pass

    definition = definition_of(process_with(Named))
    compiled = definition.states["renamed"]

    assert definition.state_of(Named) is compiled
    assert definition.state_of("renamed") is compiled
    assert definition.state_of(compiled.state) is compiled
    assert definition.movement(Named).state_id == "renamed"
    with pytest.raises(InvalidArgumentError, match="Sample declares no state 'VerifyState'"):
        definition.state_of(VerifyState)


def test_one_class_may_serve_several_states_that_are_named_by_id() -> None:
    class Numbered(AsyncState[None]):
        def __init__(self, number: int) -> None:
            self.number = number

        def execute(self) -> StateDecision:
            return StateDecision.dead_end()

        def get_state_options(self) -> AsyncStateOptions:
            return AsyncStateOptions(state_id=f"step-{self.number}")

    definition = definition_of(process_with(Numbered(1), Numbered(2)))

    assert list(definition.states) == ["step-1", "step-2"]
    with pytest.raises(InvalidArgumentError, match=r"several states of class Numbered \('step-1', 'step-2'\)"):
        definition.state_of(Numbered)


def test_a_state_class_inherits_options_but_not_the_id() -> None:
    @state(state_id="parent", execute_api_timeout_seconds=7, wait_until_api_timeout_seconds=8)
    class Parent(DoneState):
        pass

    @state(execute_api_timeout_seconds=9)
    class Tuned(Parent):
        pass

    class Plain(Parent):
        pass

    definition = definition_of(process_with(Parent, Tuned, Plain))

    assert list(definition.states) == ["parent", "Tuned", "Plain"]
    assert definition.states["Tuned"].wire_options.execute_api_timeout_ms == 9_000
    assert definition.states["Tuned"].wire_options.wait_until_api_timeout_ms == 8_000
    assert definition.states["Plain"].wire_options.execute_api_timeout_ms == 7_000


def test_an_rpc_decorator_must_be_on_a_method() -> None:
    with pytest.raises(ProcessDefinitionError, match="put it on a method"):
        rpc(staticmethod(len))
    with pytest.raises(ProcessDefinitionError, match="timeout_seconds"):
        rpc(timeout_seconds=0)
    with pytest.raises(ProcessDefinitionError, match="timeout_seconds"):
        rpc(timeout_seconds=-1)


def test_the_primary_key_has_one_type() -> None:
    @process(table_name="t", primary_key="id", primary_key_type=int)
    class Sample(ObjectProcess):
        id = data_attribute(str)

    assert "data attribute 'id' is the primary key, but of another type" in problems_of(Sample)


def test_a_lock_needs_a_method_that_is_given_data() -> None:
    class Sample(ObjectProcess):
        count = data_attribute(int)

        @rpc(data_attribute_loading_policy=PersistenceLoadingPolicy.all().locking(["count"]))
        def add(self) -> None: ...

    assert "locks attributes, but no persistence parameter" in problems_of(Sample)


def test_a_prefix_is_no_name() -> None:
    class Sample(ObjectProcess):
        scores = data_attribute(int, prefix="score_")
        answers = internal_queue(int, prefix="answer_")

    definition = definition_of(Sample)

    assert definition.attribute(Sample.scores.named("ann")).type_hint is int
    with pytest.raises(InvalidArgumentError, match=r"'score_' is a prefix of data attributes: .*key\.named"):
        definition.attribute(Sample.scores)
    with pytest.raises(InvalidArgumentError, match=r"'answer_' is a prefix of internal queues"):
        definition.queue(Sample.answers)
    with pytest.raises(InvalidArgumentError, match="at most 255"):
        definition.queue("answer_" + "x" * 255)
    with pytest.raises(ProcessDefinitionError, match="'count' is not declared by prefix"):
        data_attribute(int, name="count").named("x")
    with pytest.raises(ProcessDefinitionError, match="give one of them"):
        internal_queue(int, name="a", prefix="b")


def test_a_wait_for_key_must_be_a_name() -> None:
    definition = definition_of(process_with(DoneState))

    with pytest.raises(InvalidArgumentError, match="wait_for_key is empty"):
        definition.movement(DoneState, wait_for_key="")


class NeedsNumber(AsyncState[None]):
    """Cannot be made without arguments."""

    def __init__(self, number: int) -> None:
        self.number = number

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"states": (NeedsNumber,)}, "Sample: state NeedsNumber cannot be made without arguments"),
        ({"starting_state": Form}, "is no state: list classes that extend AsyncState"),
        ({"states": ("DoneState",)}, "Sample: 'DoneState' is no state"),
        (
            {"states": data_attribute(int)},
            "Sample: the class attribute `states` lists the states, but is",
        ),
        ({"get_async_states": lambda self: None}, "returned None: return a StateSchema"),
    ],
    ids=["needs arguments", "a model", "a name", "an attribute called states", "no schema"],
)
def test_what_cannot_be_listed_as_a_state_is_refused(attributes: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(type("Sample", (ObjectProcess,), attributes))


def test_the_schema_form_has_prefixes_and_processes_without_a_starting_state() -> None:
    class Sample(ObjectProcess):
        def get_async_states(self) -> StateSchema:
            return StateSchema.no_starting_state(DoneState())

        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema.create(PersistenceField.data_attribute_prefix_def("score_", int))

        def get_communication_schema(self) -> CommunicationSchema:
            return CommunicationSchema.create(CommunicationMethod.internal_queue_def_by_prefix("answer_", str))

    definition = definition_of(Sample)

    assert definition.starting_state is None
    assert list(definition.states) == ["DoneState"]
    assert definition.attribute("score_ann").type_hint is int
    assert definition.queue("answer_ann").type_hint is str


def test_a_static_execute_and_options_of_another_type_are_refused() -> None:
    class Static(AsyncState[None]):
        @staticmethod
        def execute() -> StateDecision:
            return StateDecision.dead_end()

    class Careless(DoneState):
        def get_state_options(self) -> Any:
            return {"state_id": "x"}

    problems = problems_of(process_with(Static, Careless))

    assert "Sample: Static.execute is a staticmethod: write it as a plain method" in problems
    assert "Sample: Careless: get_state_options() returned {'state_id': 'x'}: return AsyncStateOptions" in problems
