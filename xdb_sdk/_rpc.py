"""The `rpc` decorator, and the types by which a call through a client is checked.

At run time a decorated method stays the plain function that it was. To type checkers it is an `RpcMethod[InputT,
OutputT]` as well, so that `client.invoke_rpc(process_id, UserSignupProcess.verify, "email")` has the type of what
`verify` returns, and refuses an input of another type.
"""

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from xdb_sdk._duration import seconds_to_milliseconds
from xdb_sdk._errors import InvalidArgumentError, ProcessDefinitionError
from xdb_sdk._injected import Injected
from xdb_sdk._options import PersistenceLoadingPolicy

RPC_OPTIONS = "__xdb_rpc_options__"

P = ParamSpec("P")
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ReturnT = TypeVar("ReturnT")
InputT_contra = TypeVar("InputT_contra", contravariant=True)
OutputT_co = TypeVar("OutputT_co", covariant=True)
ReturnT_co = TypeVar("ReturnT_co", covariant=True)
J1 = TypeVar("J1", bound=Injected)
J2 = TypeVar("J2", bound=Injected)
J3 = TypeVar("J3", bound=Injected)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcOptions:
    """What `@rpc` says."""

    timeout_seconds: float = 10.0
    data_attribute_loading_policy: PersistenceLoadingPolicy | None = None
    read_only: bool = False
    exclusive: bool = False
    name: str | None = None

    @property
    def timeout(self) -> timedelta:
        """The timeout, to the millisecond."""
        return timedelta(milliseconds=seconds_to_milliseconds(self.timeout_seconds, "timeout_seconds"))


class RpcMethod(Generic[InputT_contra, OutputT_co]):
    """To type checkers, an RPC method that takes InputT (None: no input) and gives OutputT to the caller."""


class ProcessRpc(RpcMethod[InputT_contra, OutputT_co], Generic[P, ReturnT_co, InputT_contra, OutputT_co]):
    """To type checkers, an RPC method as an attribute of its class; call it with the process and its arguments."""

    def __call__(self, process: Any, /, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co:
        """Call the method itself, without a server, as its own unit test does."""
        raise NotImplementedError


class BoundRpc(RpcMethod[InputT_contra, OutputT_co], Generic[P, ReturnT_co, InputT_contra, OutputT_co]):
    """To type checkers, an RPC method as an attribute of an instance; call it with its arguments."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co:
        """Call the method itself, without a server, as its own unit test does."""
        raise NotImplementedError


class RpcFunction(Generic[P, ReturnT_co, InputT_contra]):
    """To type checkers, what `@rpc` makes of a method. A coroutine function gives the caller what it awaits to."""

    @overload
    def __get__(
        self: "RpcFunction[P, Coroutine[Any, Any, OutputT], InputT]", process: None, owner: Any, /
    ) -> ProcessRpc[P, Coroutine[Any, Any, OutputT], InputT, OutputT]: ...
    @overload
    def __get__(
        self: "RpcFunction[P, Coroutine[Any, Any, OutputT], InputT]", process: object, owner: Any, /
    ) -> BoundRpc[P, Coroutine[Any, Any, OutputT], InputT, OutputT]: ...
    @overload
    def __get__(self, process: None, owner: Any, /) -> ProcessRpc[P, ReturnT_co, InputT_contra, ReturnT_co]: ...
    @overload
    def __get__(self, process: object, owner: Any, /) -> BoundRpc[P, ReturnT_co, InputT_contra, ReturnT_co]: ...
    def __get__(self, process: object, owner: Any, /) -> Any:
        """Tell class and instance access apart."""
        raise NotImplementedError


class RpcDecorator:
    """Make a method of a process callable from outside: the type of `rpc`.

    The process answers while it runs and, if the method changes nothing, also after. The method declares the
    parameters it wants: `ctx`, `persistence`, `communication`, by name or by annotation, and at most one other, which
    is the input. `def` or `async def`. An override in a child class stays an RPC, and keeps these options unless it is
    decorated itself.

    Example:
        @rpc
        def verify(self, source: str, persistence: Persistence) -> str: ...

        @rpc(timeout_seconds=3, read_only=True)
        def status(self, persistence: Persistence) -> str: ...

    Source: semantics 5.
    """

    def __init__(self, options: RpcOptions) -> None:
        self._options = options

    # The overloads find the input among the parameters for type checkers: it is the one that is not Injected. J1 to J3
    # are parameters that the worker fills, in any order, before the input; what comes after, P, needs no looking at.
    # Their order matters: an input of type Any or object fits every J, and an injected parameter fits InputT.

    # An input of type Any or object.
    @overload
    def __call__(  # type: ignore[overload-overlap]  # object also fits the callables below: the order is the rule
        self, method: Callable[Concatenate[Any, object, P], ReturnT], /
    ) -> RpcFunction[Concatenate[object, P], ReturnT, object]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # object also fits the callables below: the order is the rule
        self, method: Callable[Concatenate[Any, J1, object, P], ReturnT], /
    ) -> RpcFunction[Concatenate[J1, object, P], ReturnT, object]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # object also fits the callables below: the order is the rule
        self, method: Callable[Concatenate[Any, J1, J2, object, P], ReturnT], /
    ) -> RpcFunction[Concatenate[J1, J2, object, P], ReturnT, object]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, J1, J2, J3, object, P], ReturnT], /
    ) -> RpcFunction[Concatenate[J1, J2, J3, object, P], ReturnT, object]: ...

    # No input.
    @overload
    def __call__(self, method: Callable[[Any], ReturnT], /) -> RpcFunction[[], ReturnT, None]: ...
    @overload
    def __call__(self, method: Callable[[Any, J1], ReturnT], /) -> RpcFunction[[J1], ReturnT, None]: ...
    @overload
    def __call__(self, method: Callable[[Any, J1, J2], ReturnT], /) -> RpcFunction[[J1, J2], ReturnT, None]: ...
    @overload
    def __call__(self, method: Callable[[Any, J1, J2, J3], ReturnT], /) -> RpcFunction[[J1, J2, J3], ReturnT, None]: ...

    # An input of some type.
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, J1, J2, J3, InputT, P], ReturnT], /
    ) -> RpcFunction[Concatenate[J1, J2, J3, InputT, P], ReturnT, InputT]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, J1, J2, InputT, P], ReturnT], /
    ) -> RpcFunction[Concatenate[J1, J2, InputT, P], ReturnT, InputT]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, J1, InputT, P], ReturnT], /
    ) -> RpcFunction[Concatenate[J1, InputT, P], ReturnT, InputT]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, InputT, P], ReturnT], /
    ) -> RpcFunction[Concatenate[InputT, P], ReturnT, InputT]: ...

    @overload
    def __call__(
        self,
        /,
        *,
        timeout_seconds: float = 10.0,
        data_attribute_loading_policy: PersistenceLoadingPolicy | None = None,
        read_only: bool = False,
        exclusive: bool = False,
        name: str | None = None,
    ) -> "RpcDecorator": ...

    def __call__(
        self,
        method: Any = None,
        /,
        *,
        timeout_seconds: float = 10.0,
        data_attribute_loading_policy: PersistenceLoadingPolicy | None = None,
        read_only: bool = False,
        exclusive: bool = False,
        name: str | None = None,
    ) -> Any:
        """Mark a method as an RPC, or give the options to do so.

        Args:
            method: The method, without parentheses: `@rpc`.
            timeout_seconds: How long the caller waits for it.
            data_attribute_loading_policy: What it is given of the data, and what it locks; by default everything, or
                nothing if it has no `persistence` parameter.
            read_only: Refuse changes, which makes the call cheaper. It has no request id, so the method should change
                nothing elsewhere either.
            exclusive: A repetition of a call waits while the method runs for it, instead of running it beside. That
                costs a transaction before the call.
            name: Its name on the wire, by default the method's.

        Raises:
            ProcessDefinitionError: What is decorated is not a method, or an option is out of range.
        """
        if method is not None:
            return _mark(method, self._options)
        options = RpcOptions(
            timeout_seconds=timeout_seconds,
            data_attribute_loading_policy=data_attribute_loading_policy,
            read_only=read_only,
            exclusive=exclusive,
            name=name,
        )
        _check(options)
        return RpcDecorator(options)


rpc = RpcDecorator(RpcOptions())
"""Decorator of RPC methods: `@rpc`, or `@rpc(timeout_seconds=3)`; see RpcDecorator."""


def _mark(method: Any, options: RpcOptions) -> Any:
    if not inspect.isfunction(method):
        raise ProcessDefinitionError(f"@rpc is on {method!r}: put it on a method of a process, next to its `def`")
    setattr(method, RPC_OPTIONS, options)
    return method


def _check(options: RpcOptions) -> None:
    try:
        timeout = options.timeout
    except InvalidArgumentError as error:
        raise ProcessDefinitionError(f"@rpc: {error}") from error
    if timeout <= timedelta(0):
        raise ProcessDefinitionError("@rpc: timeout_seconds is 0: give the seconds that a call may take")
    if options.read_only and options.exclusive:
        raise ProcessDefinitionError("@rpc: what is read_only may run twice at once: leave out exclusive")
