"""What a process declares about its data and its queues: typed keys, and the schemas made of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from xdb_sdk._errors import InvalidArgumentError, ProcessDefinitionError

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class DataAttribute(Generic[T]):
    """A typed key of a data attribute: what `Persistence` is asked for, and at the same time its declaration.

    Attributes:
        name: Name of the attribute; as a class attribute of a process it may be left to the attribute's own name.
        type_hint: Type of its values.
        column: Column of the mapped table, by default the name.
        is_prefix: Whether it stands for every attribute whose name begins with `name`.
    """

    name: str
    type_hint: Any
    column: str | None = None
    is_prefix: bool = False

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:
            object.__setattr__(self, "name", name)

    def named(self, suffix: str) -> "DataAttribute[T]":
        """Make the key of one attribute under this prefix: `scores.named("anna")`."""
        _require_prefix(self)
        return DataAttribute(self.name + suffix, self.type_hint)


@dataclass(frozen=True, eq=False)
class InternalQueue(Generic[T]):
    """A typed key of an internal queue, and at the same time its declaration.

    Attributes:
        name: Name of the queue; as a class attribute of a process it may be left to the attribute's own name.
        type_hint: Type of its messages; None for messages without a value.
        is_prefix: Whether it stands for every queue whose name begins with `name`.
    """

    name: str
    type_hint: Any
    is_prefix: bool = False

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:
            object.__setattr__(self, "name", name)

    def named(self, suffix: str) -> "InternalQueue[T]":
        """Make the key of one queue under this prefix: `answers.named("anna")`."""
        _require_prefix(self)
        return InternalQueue(self.name + suffix, self.type_hint)


def _require_prefix(key: DataAttribute[Any] | InternalQueue[Any]) -> None:
    if not key.is_prefix:
        raise ProcessDefinitionError(f"{key.name!r} is not declared by prefix, so it has no names under it")


def key_name(key: str | DataAttribute[Any] | InternalQueue[Any]) -> str:
    """Give the name that a string or a typed key stands for.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(key, str):
        return key
    if isinstance(key, DataAttribute | InternalQueue):
        return key.name
    raise InvalidArgumentError(f"a value of type {type(key).__name__} stands where a name or typed key is wanted")


def key_list(keys: Iterable[str | DataAttribute[Any]]) -> tuple[str | DataAttribute[Any], ...]:
    """List names and typed keys of data attributes, as they are.

    Inside the body of its class a key does not know its name yet, so that none is looked at.

    Raises:
        InvalidArgumentError: It is one key, or no list at all.
    """
    if isinstance(keys, str):
        raise InvalidArgumentError(f"give a list of attributes, [{keys!r}], not one string")
    if not isinstance(keys, Iterable):
        raise InvalidArgumentError(f"give a list of attributes, not a {type(keys).__name__}")
    return tuple(keys)


@overload
def data_attribute(
    type_hint: type[T], *, name: str = "", column: str | None = None, prefix: str = ""
) -> DataAttribute[T]: ...
@overload
def data_attribute(
    type_hint: Any, *, name: str = "", column: str | None = None, prefix: str = ""
) -> DataAttribute[Any]: ...
def data_attribute(
    type_hint: Any, *, name: str = "", column: str | None = None, prefix: str = ""
) -> DataAttribute[Any]:
    """Declare a data attribute as a class attribute of a process.

    Args:
        type_hint: Type of its values. For a union or Any write the result type too, because type checkers cannot
            pass one on: `nickname: DataAttribute[str | None] = data_attribute(str | None)`.
        name: Its name, if not the class attribute's.
        column: Its column in the mapped table, if not its name.
        prefix: Instead of a name: declare all attributes whose name begins so. Process-local only.

    Example:
        `form = data_attribute(Form)`
    """
    _refuse_name_and_prefix(name, prefix)
    return DataAttribute(prefix or name, type_hint, column, is_prefix=bool(prefix))


@overload
def internal_queue(type_hint: None, *, name: str = "", prefix: str = "") -> InternalQueue[None]: ...
@overload
def internal_queue(type_hint: type[T], *, name: str = "", prefix: str = "") -> InternalQueue[T]: ...
@overload
def internal_queue(type_hint: Any, *, name: str = "", prefix: str = "") -> InternalQueue[Any]: ...
def internal_queue(type_hint: Any, *, name: str = "", prefix: str = "") -> InternalQueue[Any]:
    """Declare an internal queue as a class attribute of a process.

    Args:
        type_hint: Type of its messages; None for messages without a value. For a union or Any write the result type
            too, because type checkers cannot pass one on: `notes: InternalQueue[Any] = internal_queue(Any)`.
        name: Its name, if not the class attribute's: an RPC method and a queue may then share a name.
        prefix: Instead of a name: declare all queues whose name begins so.

    Example:
        `verify_queue = internal_queue(None, name="verify")`
    """
    _refuse_name_and_prefix(name, prefix)
    return InternalQueue(prefix or name, type_hint, is_prefix=bool(prefix))


def _refuse_name_and_prefix(name: str, prefix: str) -> None:
    if name and prefix:
        raise ProcessDefinitionError(f"name={name!r} and prefix={prefix!r} are given: give one of them")


class PersistenceField:
    """Makes the fields of a `PersistenceSchema`. Each is a typed key too: keep it in a constant to read by it."""

    @overload
    @staticmethod
    def data_attribute_def(name: str, type_hint: type[T], col_name: str | None = None) -> DataAttribute[T]: ...
    @overload
    @staticmethod
    def data_attribute_def(name: str, type_hint: Any, col_name: str | None = None) -> DataAttribute[Any]: ...
    @staticmethod
    def data_attribute_def(name: str, type_hint: Any, col_name: str | None = None) -> DataAttribute[Any]:
        """Declare a data attribute, by default in the column of the same name."""
        return DataAttribute(name, type_hint, col_name)

    @overload
    @staticmethod
    def data_attribute_prefix_def(prefix: str, type_hint: type[T]) -> DataAttribute[T]: ...
    @overload
    @staticmethod
    def data_attribute_prefix_def(prefix: str, type_hint: Any) -> DataAttribute[Any]: ...
    @staticmethod
    def data_attribute_prefix_def(prefix: str, type_hint: Any) -> DataAttribute[Any]:
        """Declare every data attribute whose name begins with `prefix`. Process-local only (semantics 7.1)."""
        return DataAttribute(prefix, type_hint, is_prefix=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceSchema:
    """The data of a process: its attributes, and the table whose row they live in, if any."""

    attributes: tuple[DataAttribute[Any], ...] = ()
    table_name: str | None = None
    primary_key: str | None = None
    primary_key_type: Any = None

    @staticmethod
    def create(
        *fields: DataAttribute[Any],
        table_name: str | None = None,
        primary_key: str | None = None,
        primary_key_type: Any = None,
    ) -> "PersistenceSchema":
        """Declare the attributes and the mapped table.

        Args:
            fields: From `PersistenceField`.
            table_name: Table that each execution is mapped to, one row each. None keeps the attributes with the
                execution itself.
            primary_key: Key column of the table; its value is the object id given at start.
            primary_key_type: Type of the object id.
        """
        return PersistenceSchema(
            attributes=fields, table_name=table_name, primary_key=primary_key, primary_key_type=primary_key_type
        )


class CommunicationMethod:
    """Makes the entries of a `CommunicationSchema`. Each is a typed key too."""

    @overload
    @staticmethod
    def internal_queue_def(name: str, type_hint: None) -> InternalQueue[None]: ...
    @overload
    @staticmethod
    def internal_queue_def(name: str, type_hint: type[T]) -> InternalQueue[T]: ...
    @overload
    @staticmethod
    def internal_queue_def(name: str, type_hint: Any) -> InternalQueue[Any]: ...
    @staticmethod
    def internal_queue_def(name: str, type_hint: Any) -> InternalQueue[Any]:
        """Declare an internal queue and the type of its messages; None for messages without a value."""
        return InternalQueue(name, type_hint)

    @overload
    @staticmethod
    def internal_queue_def_by_prefix(prefix: str, type_hint: None) -> InternalQueue[None]: ...
    @overload
    @staticmethod
    def internal_queue_def_by_prefix(prefix: str, type_hint: type[T]) -> InternalQueue[T]: ...
    @overload
    @staticmethod
    def internal_queue_def_by_prefix(prefix: str, type_hint: Any) -> InternalQueue[Any]: ...
    @staticmethod
    def internal_queue_def_by_prefix(prefix: str, type_hint: Any) -> InternalQueue[Any]:
        """Declare every internal queue whose name begins with `prefix`."""
        return InternalQueue(prefix, type_hint, is_prefix=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationSchema:
    """The internal queues of a process."""

    queues: tuple[InternalQueue[Any], ...] = ()

    @staticmethod
    def create(*methods: InternalQueue[Any]) -> "CommunicationSchema":
        """Declare the queues; `methods` come from `CommunicationMethod`."""
        return CommunicationSchema(queues=methods)
