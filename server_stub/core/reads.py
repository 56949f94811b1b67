"""From what a call asks of the persistence to what it is given, and what it must find unchanged (semantics 5.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from server_stub.core.model import LocalAttributeRead, ReadSet, RowKey, RowRead
from server_stub.core.ports import CallReads
from server_stub.core.refusals import InvalidAnswer
from xdb_sdk.protocol import LoadedData, LoadedTable, LockType, ReadRequest, TableMapping


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of one call. `rows` is parallel to the tables of `request`."""

    process_execution_id: str
    request: ReadRequest
    rows: tuple[RowRead, ...]
    local_attributes: LocalAttributeRead | None

    @property
    def is_empty(self) -> bool:
        """Whether the database need not be asked."""
        return not self.rows and self.local_attributes is None


def plan_reads(
    process_execution_id: str, tables: Sequence[TableMapping], request: ReadRequest, *, read_all_local: bool = False
) -> ReadPlan:
    """Find the rows that a request means: the execution's own, by table name.

    Raises:
        InvalidAnswer: The execution is not mapped to such a table.
    """
    mapped = {mapping.table_name: mapping for mapping in tables}
    rows: list[RowRead] = []
    for table in request.tables:
        mapping = mapped.get(table.table_name)
        if mapping is None:
            raise InvalidAnswer(f"the process execution is not mapped to a row of table {table.table_name!r}")
        columns = tuple(dict.fromkeys((*table.columns, *table.lock_columns)))
        rows.append(RowRead(RowKey.of(mapping), columns))
    local: LocalAttributeRead | None = None
    if request.local_attributes or request.local_attribute_prefixes or request.lock_local_attributes or read_all_local:
        names = tuple(dict.fromkeys((*request.local_attributes, *request.lock_local_attributes)))
        local = LocalAttributeRead(process_execution_id, names, request.local_attribute_prefixes, read_all_local)
    return ReadPlan(process_execution_id, request, tuple(rows), local)


def revised(request: ReadRequest, wanted: ReadRequest) -> ReadRequest:
    """Give the request for another round of a call whose worker wants other data; what it locked stays locked.

    Args:
        request: What the call was made with.
        wanted: What the worker asks for, by its definition of today.
    """
    if request.lock_type is LockType.NO_LOCKING or wanted.lock_type is not LockType.NO_LOCKING:
        return wanted
    locked = {table.table_name: table.lock_columns for table in request.tables}
    tables = tuple(
        table.model_copy(update={"lock_columns": locked.get(table.table_name, ())}) for table in wanted.tables
    )
    return wanted.model_copy(
        update={
            "tables": tables,
            "lock_local_attributes": request.lock_local_attributes,
            "lock_type": request.lock_type,
        }
    )


def loaded_data(plan: ReadPlan, reads: CallReads) -> LoadedData:
    """Give what was read in the form of the wire."""
    tables = []
    for row in plan.rows:
        values = reads.rows.get(row)
        columns = dict.fromkeys(row.columns) if values is None else {name: values[name] for name in row.columns}
        tables.append(LoadedTable(table_name=row.row.table_name, exists=values is not None, columns=columns))
    asked = plan.local_attributes
    return LoadedData(
        tables=tuple(tables),
        local_attributes=_local_values(plan, reads),
        asked_local_attributes=asked.names if asked else (),
        asked_local_attribute_prefixes=asked.prefixes if asked else (),
    )


def _local_values(plan: ReadPlan, reads: CallReads) -> dict[str, object]:
    asked = plan.local_attributes
    if asked is None:
        return {}
    texts = reads.local_attributes.get(plan.process_execution_id, {})
    return {
        name: from_json(text)
        for name, text in texts.items()
        if asked.read_all or name in asked.names or name.startswith(asked.prefixes)
    }


def read_set_of(plan: ReadPlan, reads: CallReads) -> ReadSet | None:
    """Give what a locking call must find unchanged at its commit; None when the request locks nothing."""
    request = plan.request
    if request.lock_type is LockType.NO_LOCKING:
        return None
    rows = []
    for table, read in zip(request.tables, plan.rows, strict=True):
        if not table.lock_columns:
            continue
        values = reads.rows.get(read)
        seen = None if values is None else {name: values[name] for name in table.lock_columns}
        rows.append((RowRead(read.row, table.lock_columns), seen))
    texts = reads.local_attributes.get(plan.process_execution_id, {})
    local = {name: texts.get(name) for name in request.lock_local_attributes}
    return ReadSet(tuple(rows), plan.process_execution_id, local)
