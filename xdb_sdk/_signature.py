"""Reading the methods of users: which parameters they want, the type of their input, what they return."""

import inspect
import sys
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import get_original_bases

from xdb_sdk._command import CommandResults
from xdb_sdk._communication import Communication
from xdb_sdk._context import ProcessContext, StateContext
from xdb_sdk._definition import MethodDefinition, ParameterRole
from xdb_sdk._errors import ProcessDefinitionError
from xdb_sdk._names import type_text
from xdb_sdk._persistence import Persistence

_ROLE_BY_NAME = {
    "ctx": ParameterRole.CONTEXT,
    "context": ParameterRole.CONTEXT,
    "input": ParameterRole.INPUT,
    "command_results": ParameterRole.COMMAND_RESULTS,
    "persistence": ParameterRole.PERSISTENCE,
    "communication": ParameterRole.COMMUNICATION,
}
_ROLE_BY_TYPE: dict[Any, ParameterRole] = {
    ProcessContext: ParameterRole.CONTEXT,
    StateContext: ParameterRole.STATE_CONTEXT,
    CommandResults: ParameterRole.COMMAND_RESULTS,
    Persistence: ParameterRole.PERSISTENCE,
    Communication: ParameterRole.COMMUNICATION,
}
_TYPE_BY_ROLE: dict[ParameterRole | None, Any] = {role: hint for hint, role in _ROLE_BY_TYPE.items()}
_NAME_BY_ROLE = {role: name for name, role in _ROLE_BY_NAME.items() if name != "context"}

UNKNOWN: Any = object()
"""Stands for a type that is not written down."""


class UnresolvedAnnotationError(Exception):
    """A string annotation names something that its module does not have."""

    def __init__(self, annotation: Any, reason: str) -> None:
        self.annotation = annotation
        self.reason = reason
        super().__init__(reason)


def read_method(
    function: Any, where: str, roles: Collection[ParameterRole], input_type: Any = UNKNOWN
) -> MethodDefinition:
    """Read a method.

    Args:
        function: As found in its class.
        where: Class and method, for messages: "SubmitState.execute".
        roles: What the method may be given.
        input_type: The type of the input, where something else than the parameter says it.

    Raises:
        ProcessDefinitionError: It is no plain method, has parameters that cannot be filled, or types that contradict
            one another.
    """
    if not inspect.isfunction(function):
        raise ProcessDefinitionError(f"{where} is a {type(function).__name__}: write it as a plain method, with `def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ProcessDefinitionError(f"{where} is a generator: return a value instead of yielding")
    found: dict[ParameterRole, str] = {}
    for parameter in _parameters(function, where):
        role = _role(function, parameter.name, where, roles)
        if role in found:
            raise ProcessDefinitionError(
                f"{where}: parameters {found[role]!r} and {parameter.name!r} both stand for the {_described(role)}: "
                "keep one"
            )
        found[role] = parameter.name
    input_name = found.get(ParameterRole.INPUT)
    output_type = _hint(function, "return", where)
    return MethodDefinition(
        function=function,
        roles=tuple(found),
        parameter_names=tuple(found.values()),
        input_type=type(None)
        if input_name is None
        else _agreed_input_type(_hint(function, input_name, where), input_type, where),
        has_input=input_name is not None,
        output_type=Any if output_type is UNKNOWN else output_type,
        is_async=inspect.iscoroutinefunction(function),
    )


def _parameters(function: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    parameters = list(_signature(function).parameters.values())
    if not parameters:
        raise ProcessDefinitionError(f"{where} has no parameters: its first one must be `self`")
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ProcessDefinitionError(
                f"{where}: {str(parameter)!r} cannot be filled by name: list the parameters it wants"
            )
        if parameter.default is not parameter.empty:
            raise ProcessDefinitionError(
                f"{where}: parameter {parameter.name!r} has a default, which is never used: leave the default out"
            )
    return parameters[1:]


def _role(function: Callable[..., Any], name: str, where: str, roles: Collection[ParameterRole]) -> ParameterRole:
    """Tell by its annotation, else by its name, what a parameter is to be given."""
    by_name = _ROLE_BY_NAME.get(name.lstrip("_"))
    # The names of what the worker gives are often imported for type checkers only; their parameters' names will do.
    hint = UNKNOWN if by_name in _TYPE_BY_ROLE and not _is_resolvable(function, name) else _hint(function, name, where)
    by_type = _ROLE_BY_TYPE.get(hint) if isinstance(hint, type) else None
    if by_type is None and by_name in _TYPE_BY_ROLE and hint not in (UNKNOWN, Any):
        raise ProcessDefinitionError(
            f"{where}: parameter {name!r} is annotated {type_text(hint)}, but that name is reserved: "
            f"annotate it {_TYPE_BY_ROLE[by_name].__name__}, or rename it"
        )
    role = by_type or by_name
    if role is None and hint is UNKNOWN:
        names = ", ".join(known for r, known in _NAME_BY_ROLE.items() if r in roles)
        raise ProcessDefinitionError(
            f"{where}: parameter {name!r} has no type: annotate it if it is the input, or use one of the names {names}"
        )
    role = role or ParameterRole.INPUT
    if role is ParameterRole.STATE_CONTEXT and role not in roles:
        raise ProcessDefinitionError(
            f"{where}: parameter {name!r} is a StateContext, which only states are given: annotate it ProcessContext"
        )
    if role not in roles:
        raise ProcessDefinitionError(f"{where} cannot be given {_described(role)}: remove parameter {name!r}")
    return role


def _is_resolvable(function: Callable[..., Any], name: str) -> bool:
    try:
        _resolve_hint(function, name)
    except UnresolvedAnnotationError:
        return False
    return True


def _described(role: ParameterRole) -> str:
    return role.lower().replace("_", " ")


# From Python 3.14 on, annotations are evaluated when they are asked for, and one that only type checkers can see raises
# NameError there and then, unless it is asked for as a forward reference.
if sys.version_info >= (3, 14):
    import annotationlib

    def _signature(function: Callable[..., Any]) -> inspect.Signature:
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

    def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)

else:

    def _signature(function: Callable[..., Any]) -> inspect.Signature:
        return inspect.signature(function)

    def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
        return function.__annotations__


def _agreed_input_type(annotated: Any, declared: Any, where: str) -> Any:
    """Join what the parameter and the class say of the input's type; either may say nothing."""
    if annotated in (UNKNOWN, Any) or _is_open(annotated):
        known = annotated if declared is UNKNOWN else declared
        return Any if known is UNKNOWN else known
    if declared in (UNKNOWN, Any) or declared == annotated:
        return annotated
    raise ProcessDefinitionError(
        f"{where}: the input is annotated {type_text(annotated)}, but elsewhere the class says {type_text(declared)}: "
        "make them the same"
    )


def _resolve_hint(function: Callable[..., Any], name: str) -> Any:
    """Give the annotation of a parameter, or of "return", with strings resolved; UNKNOWN without one.

    One at a time, so that a name which only type checkers can see spoils no other.
    """
    function = inspect.unwrap(function)
    annotations = _annotations(function)
    if name not in annotations:
        return UNKNOWN
    one = SimpleNamespace(__annotations__={name: annotations[name]})
    type_parameters = {t.__name__: t for t in getattr(function, "__type_params__", ())}
    try:
        return get_type_hints(one, function.__globals__, type_parameters, include_extras=True)[name]
    except (NameError, AttributeError, SyntaxError) as error:
        raise UnresolvedAnnotationError(annotations[name], str(error)) from error


def _hint(function: Callable[..., Any], name: str, where: str) -> Any:
    try:
        return _resolve_hint(function, name)
    except UnresolvedAnnotationError as error:
        what = "the return type" if name == "return" else f"the type of parameter {name!r}"
        raise ProcessDefinitionError(
            f"{where}: {what}, {error.annotation!r}, cannot be resolved ({error.reason}): import or define it at "
            "the top level of its module, not only for type checkers or inside a function"
        ) from error


def type_argument(generic_class: Any, base: type) -> Any:
    """Find T in `base[T]`, wherever in the class order it stands; UNKNOWN if it stands nowhere.

    Args:
        generic_class: A class that derives from `base`, or such a class with type arguments: `Retrying[int]`.
        base: A class with one type parameter.
    """
    origin, arguments = get_origin(generic_class) or generic_class, get_args(generic_class)
    if origin is base:
        return arguments[0] if arguments else UNKNOWN
    if not isinstance(origin, type) or not issubclass(origin, base):
        return UNKNOWN
    for original in get_original_bases(origin):
        found = type_argument(original, base)
        if found is not UNKNOWN:
            return _substitute(found, dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False)))
    return UNKNOWN


def _substitute(hint: Any, arguments: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return arguments.get(hint, hint)
    if not _is_open(hint) or not arguments:
        return hint
    return hint[tuple(arguments.get(parameter, parameter) for parameter in hint.__parameters__)]


def _is_open(hint: Any) -> bool:
    return isinstance(hint, TypeVar) or bool(getattr(hint, "__parameters__", ()) and get_origin(hint))
