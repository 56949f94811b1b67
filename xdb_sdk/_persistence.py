"""Reading and writing a process's data inside one call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from xdb_sdk._definition import AttributeDefinition, ProcessDefinition
from xdb_sdk._errors import AttributeNotLoadedError, InvalidArgumentError
from xdb_sdk._injected import Injected
from xdb_sdk._names import check_name
from xdb_sdk._schema import DataAttribute, key_name
from xdb_sdk.protocol import ColumnValue, Json, LoadedData, ReadRequest, RecordedEvent, TableWrite

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceEffects:
    """What a call has written, for its answer."""

    write_tables: tuple[TableWrite, ...] = ()
    write_local_attributes: Mapping[str, Json]
    state_locals: Mapping[str, Json]
    recorded_events: tuple[RecordedEvent, ...] = ()


class Persistence(Injected):
    """The data of a process execution, as one call sees it.

    It was loaded before the call began. Writes are seen by this call at once, and by others when the call's answer is
    committed: all of them, or none if the call fails.

    Args:
        definition: The process.
        loaded: What the server read.
        where: The method, for messages.
        state_locals: What wait_until left for execute; None in an RPC, which has no state.
        read_only: Refuse every write.

    Source: semantics 7.3.
    """

    def __init__(
        self,
        definition: ProcessDefinition,
        loaded: LoadedData,
        *,
        where: str,
        state_locals: Mapping[str, Json] | None = None,
        read_only: bool = False,
    ) -> None:
        self._definition = definition
        self._loaded = loaded
        self._where = where
        self._read_only = read_only
        self._columns: dict[str, ColumnValue] = _columns_of(definition, loaded)
        self._local: dict[str, Json] = dict(loaded.local_attributes)
        self._state_locals = None if state_locals is None else dict(state_locals)
        self._written_columns: dict[str, ColumnValue] = {}
        self._written_local: dict[str, Json] = {}
        self._written_state_locals: dict[str, Json] = {}
        self._events: list[RecordedEvent] = []

    @overload
    def get_data_attribute(self, key: DataAttribute[T]) -> T: ...
    @overload
    def get_data_attribute(self, key: str) -> Any: ...
    def get_data_attribute(self, key: DataAttribute[Any] | str) -> Any:
        """Give the value of a data attribute, decoded to its declared type; a value of its own on each call.

        Returns:
            None if it was never set or is NULL, whatever its type.

        Raises:
            InvalidArgumentError: The process declares no such attribute.
            AttributeNotLoadedError: The loading policy leaves it out.
            DecodeError: What is stored does not fit the declared type.
        """
        attribute, name, data = self._find(key)
        if data is None:
            return None
        where = f"data attribute {name!r} of {self._definition.process_type}"
        if attribute.column is None:
            return self._definition.encoder.decode(data, attribute.type_hint, where)
        return self._definition.encoder.decode_column(data, attribute.type_hint, where)

    def has_data_attribute(self, key: DataAttribute[Any] | str) -> bool:
        """Say whether a data attribute has a value. For a process-local one, None is a value; for a column it is not.

        Raises:
            InvalidArgumentError: The process declares no such attribute.
            AttributeNotLoadedError: The loading policy leaves it out.
        """
        attribute, name, data = self._find(key)
        return name in self._local if attribute.column is None else data is not None

    def _find(self, key: DataAttribute[Any] | str) -> tuple[AttributeDefinition, str, Json]:
        attribute, name = self._definition.attribute(key), key_name(key)
        if attribute.column is not None:
            if attribute.column not in self._columns:
                raise AttributeNotLoadedError(name, self._where)
            return attribute, name, self._columns[attribute.column]
        if name not in self._local and not self._is_local_loaded(name):
            raise AttributeNotLoadedError(name, self._where)
        return attribute, name, self._local.get(name)

    def _is_local_loaded(self, name: str) -> bool:
        asked = self._loaded
        return name in asked.asked_local_attributes or name.startswith(asked.asked_local_attribute_prefixes)

    @overload
    def set_data_attribute(self, key: DataAttribute[T], value: T) -> None: ...
    @overload
    def set_data_attribute(self, key: str, value: Any) -> None: ...
    def set_data_attribute(self, key: DataAttribute[Any] | str, value: Any) -> None:
        """Write a data attribute. The value is taken as it is now; later changes inside it are not seen.

        Raises:
            InvalidArgumentError: The process declares no such attribute, it is the primary key, or the call is
                read-only.
            EncodeError: The value is not of the declared type.
        """
        attribute, name = self._definition.attribute(key), key_name(key)
        self._refuse_if_read_only(f"set data attribute {name!r}")
        where = f"data attribute {name!r} of {self._definition.process_type}"
        if attribute.column is None:
            self._local[name] = self._written_local[name] = self._definition.encoder.encode(
                value, attribute.type_hint, where
            )
            return
        if self._definition.table is not None and attribute.column == self._definition.table.primary_key:
            raise InvalidArgumentError(f"{where} is the primary key, by which its row is found: it cannot be written")
        self._columns[attribute.column] = self._written_columns[attribute.column] = (
            self._definition.encoder.encode_column(value, attribute.type_hint, where)
        )

    def get_state_execution_local(self, key: str, type_hint: Any = Any) -> Any:
        """Give a value that wait_until left for the execute of the same state execution; None without one.

        Args:
            key: Its name.
            type_hint: The type to decode it to; by default plain JSON.

        Raises:
            InvalidArgumentError: The call is an RPC.
        """
        data = self._locals_of_state().get(key)
        return None if data is None else self._definition.encoder.decode(data, type_hint, f"state local {key!r}")

    def set_state_execution_local(self, key: str, value: Any, type_hint: Any = Any) -> None:
        """Leave a value for the execute of the same state execution; in execute it lasts for the call.

        Args:
            key: Its name.
            value: What to keep, of the type hint.
            type_hint: The type to encode it as; by default its own, for plain JSON and whatever the encoder writes
                as such. Give the one it is read with if the two differ, such as a union or a base class.

        Raises:
            InvalidArgumentError: The call is an RPC, or the name cannot be stored.
            EncodeError: The value cannot be written as JSON, or is not of the type hint.
        """
        state_locals = self._locals_of_state()
        check_name(key, "name of a state local")
        where = f"state local {key!r}"
        encoder = self._definition.encoder
        data = encoder.encode_undeclared(value, where) if type_hint is Any else encoder.encode(value, type_hint, where)
        state_locals[key] = self._written_state_locals[key] = data

    def _locals_of_state(self) -> dict[str, Json]:
        if self._state_locals is None:
            raise InvalidArgumentError(
                f"{self._where} is an RPC, which has no state execution and no locals of one: use a data attribute"
            )
        return self._state_locals

    def record_event(self, name: str, *data: Any) -> None:
        """Add an event to the history of the execution, when the call is committed.

        It is read there as a `USER_EVENT`: by `Client.get_history`, or `xdb process history`. An execution that was
        started while histories were off in its namespace keeps none.

        Raises:
            InvalidArgumentError: The name cannot be stored, or the call is read-only.
            EncodeError: A value cannot be written as JSON.
        """
        self._refuse_if_read_only(f"record event {name!r}")
        check_name(name, "event name")
        encoded = tuple(self._definition.encoder.encode_undeclared(value, f"event {name!r}") for value in data)
        self._events.append(RecordedEvent(name=name, data=encoded))

    def _refuse_if_read_only(self, action: str) -> None:
        if self._read_only:
            raise InvalidArgumentError(f"{self._where} is declared read_only and cannot {action}")

    def effects(self) -> PersistenceEffects:
        """Collect the writes, for the worker."""
        tables: tuple[TableWrite, ...] = ()
        if self._written_columns and self._definition.table is not None:
            tables = (TableWrite(table_name=self._definition.table.table_name, columns=self._written_columns),)
        return PersistenceEffects(
            write_tables=tables,
            write_local_attributes=self._written_local,
            state_locals=self._written_state_locals,
            recorded_events=tuple(self._events),
        )


def _columns_of(definition: ProcessDefinition, loaded: LoadedData) -> dict[str, ColumnValue]:
    """Columns of the mapped row that were loaded, all null if there is no row."""
    table_name = definition.table.table_name if definition.table else None
    return {
        column: value
        for table in loaded.tables
        if table.table_name == table_name
        for column, value in table.columns.items()
    }


def missing_read(read: ReadRequest, loaded: LoadedData) -> ReadRequest | None:
    """Say whether the server must read again before a call, and then what.

    A state execution keeps the read request it was created with; what was added to the definition since is not in it.

    Args:
        read: What the method asks for now.
        loaded: What the server read.

    Returns:
        `read` for an answer with status 406, or None if everything is there.
    """
    columns = {(table.table_name, column) for table in loaded.tables for column in table.columns}
    is_loaded = (
        columns.issuperset((table.table_name, column) for table in read.tables for column in table.columns)
        and set(loaded.asked_local_attributes).issuperset(read.local_attributes)
        and set(loaded.asked_local_attribute_prefixes).issuperset(read.local_attribute_prefixes)
    )
    return None if is_loaded else read
