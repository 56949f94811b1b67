"""From the options a class gives to those the server freezes: defaults filled in, recovery states nested, checked."""

from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from xdb_sdk._duration import seconds_to_milliseconds
from xdb_sdk._errors import InvalidArgumentError, ProcessDefinitionError
from xdb_sdk._names import type_text
from xdb_sdk._options import AsyncStateOptions, PersistenceLoadingPolicy, RetryPolicy, StateRecovery, StateReference
from xdb_sdk.protocol import ReadRequest, RecoveryConfig, RetryPolicyConfig, StateOptionsConfig

if TYPE_CHECKING:
    from xdb_sdk._definition import MethodDefinition, ProcessDefinition, StateDefinition

DEFAULT_API_TIMEOUT_SECONDS = 30.0


def resolve_state_options(
    definition: "ProcessDefinition", state: "StateDefinition", override: AsyncStateOptions | None = None
) -> StateOptionsConfig:
    """Fill in what a state's options leave open, recovery states nested, for the server to freeze.

    Args:
        definition: The process; its `states` are looked up for recovery.
        state: The state.
        override: Wins, field by field, over the options of the state.

    Raises:
        ProcessDefinitionError: A recovery without a bounded retry policy, a recovery state that is unknown, circular
            or takes another input, an unknown attribute in a loading policy, or a number out of range.
    """
    return _resolve(definition, state, override, ())


def _resolve(
    definition: "ProcessDefinition",
    state: "StateDefinition",
    override: AsyncStateOptions | None,
    failed: tuple[str, ...],
) -> StateOptionsConfig:
    where = f"state {state.state_id!r} of {definition.process_type}"
    if state.state_id in failed:
        circle = " -> ".join((*failed, state.state_id))
        raise ProcessDefinitionError(f"{where}: its recovery leads back to itself ({circle}): end the chain elsewhere")
    options = override.over(state.options) if override else state.options
    if override and override.state_id not in (None, state.state_id):
        raise ProcessDefinitionError(f"{where}: an override cannot change the state id to {override.state_id!r}")
    wait_until_retry = (options.wait_until_api_retry_policy or RetryPolicy()).to_wire()
    execute_retry = (options.execute_api_retry_policy or RetryPolicy()).to_wire()
    _require_bounded_retry(options, wait_until_retry, execute_retry, where)
    path = (*failed, state.state_id)
    try:
        return StateOptionsConfig(
            skip_wait_until=state.wait_until is None,
            wait_until_api_timeout_ms=_timeout_ms(options.wait_until_api_timeout_seconds, "wait_until"),
            execute_api_timeout_ms=_timeout_ms(options.execute_api_timeout_seconds, "execute"),
            wait_until_api_retry_policy=wait_until_retry,
            execute_api_retry_policy=execute_retry,
            proceed_to_execute_when_wait_until_retry_exhausted=bool(
                options.proceed_to_execute_when_wait_until_retry_exhausted
            ),
            wait_until_recovery=_recovery(
                definition, state, options.proceed_to_state_when_wait_until_retry_exhausted, path
            ),
            execute_recovery=_recovery(definition, state, options.proceed_to_state_when_execute_retry_exhausted, path),
            wait_until_read=_read(
                definition, state.wait_until, options.wait_until_api_data_attributes_loading_policy, options
            ),
            execute_read=_read(definition, state.execute, options.execute_api_data_attributes_loading_policy, options),
        )
    except InvalidArgumentError as error:
        raise ProcessDefinitionError(f"{where}: {error}") from error


def _require_bounded_retry(
    options: AsyncStateOptions, wait_until_retry: RetryPolicyConfig, execute_retry: RetryPolicyConfig, where: str
) -> None:
    proceeds_after_wait_until = (
        options.proceed_to_execute_when_wait_until_retry_exhausted
        or options.proceed_to_state_when_wait_until_retry_exhausted is not None
    )
    proceeds_after_execute = options.proceed_to_state_when_execute_retry_exhausted is not None
    for api, proceeds, policy in (
        ("wait_until", proceeds_after_wait_until, wait_until_retry),
        ("execute", proceeds_after_execute, execute_retry),
    ):
        if proceeds and not policy.is_bounded:
            raise ProcessDefinitionError(
                f"{where}: it says what to do when the attempts of {api} are exhausted, but they never are: "
                f"set maximum_attempts or maximum_attempts_duration_seconds in {api}_api_retry_policy"
            )


def _timeout_ms(seconds: float | None, api: str) -> int:
    what = f"{api}_api_timeout_seconds"
    timeout_ms = seconds_to_milliseconds(DEFAULT_API_TIMEOUT_SECONDS if seconds is None else seconds, what)
    if timeout_ms == 0:
        raise InvalidArgumentError(f"{what} is 0: give the seconds that one attempt may take")
    return timeout_ms


def _recovery(
    definition: "ProcessDefinition",
    failed_state: "StateDefinition",
    proceed_to: StateReference | StateRecovery | None,
    failed: tuple[str, ...],
) -> RecoveryConfig | None:
    if proceed_to is None:
        return None
    recovery = proceed_to if isinstance(proceed_to, StateRecovery) else StateRecovery(proceed_to, AsyncStateOptions())
    state = definition.state_of(recovery.state)
    if state.has_input and not _may_take(state.input_type, failed_state.input_type):
        raise InvalidArgumentError(
            f"its recovery state {state.state_id!r} is given the same input, {type_text(failed_state.input_type)}, but "
            f"takes {type_text(state.input_type)}: let it take that type, or no input"
        )
    return RecoveryConfig(
        state_id=state.state_id, options=_resolve(definition, state, recovery.options_override, failed)
    )


def _may_take(wanted: Any, given: Any) -> bool:
    """Whether a value of one type hint can be meant for another: false only if they are plainly different."""
    return any(_may_be(want, give) for want in _members(wanted) for give in _members(given))


def _members(type_hint: Any) -> tuple[Any, ...]:
    origin = get_origin(type_hint)
    if origin is Annotated:
        return _members(get_args(type_hint)[0])
    if origin in (Union, UnionType):
        return tuple(member for part in get_args(type_hint) for member in _members(part))
    return (origin or type_hint,)


def _may_be(wanted: Any, given: Any) -> bool:
    if wanted in (given, Any, object) or given in (Any, object):
        return True
    if not isinstance(wanted, type) or not isinstance(given, type):
        return True  # an alias, a Literal, a type variable: only trying would tell
    if issubclass(wanted, Mapping) or issubclass(given, Mapping):
        return True  # as JSON it is an object, as that of many a class is
    return issubclass(given, wanted) or issubclass(wanted, given) or (wanted, given) == (float, int)


def _read(
    definition: "ProcessDefinition",
    method: "MethodDefinition | None",
    policy: PersistenceLoadingPolicy | None,
    options: AsyncStateOptions,
) -> ReadRequest:
    if method is None:
        return ReadRequest()
    if policy is None and not method.has_persistence:  # the general policy is for the other method
        return ReadRequest()
    return method_read(definition, method, policy or options.data_attributes_loading_policy)


def method_read(
    definition: "ProcessDefinition", method: "MethodDefinition", policy: PersistenceLoadingPolicy | None
) -> ReadRequest:
    """Say what a method must be given: nothing if it has no persistence parameter, everything without a policy.

    Raises:
        InvalidArgumentError: The policy names an unknown attribute, or locks where nothing is loaded.
    """
    if not method.has_persistence:
        if policy and policy.locking_keys:
            raise InvalidArgumentError(
                f"{method.function.__qualname__} has a policy that locks attributes, but no persistence parameter, "
                "without which nothing is loaded or locked: add the parameter, or remove the lock"
            )
        return ReadRequest()
    return (policy or PersistenceLoadingPolicy.all()).to_wire(definition)
