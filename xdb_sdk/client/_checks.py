"""Checks of what a caller gives, made before anything is sent (semantics 1.7)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from pydantic import ValidationError

from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.protocol import MAX_ID_BYTES


def check_name(name: str, what: str) -> str:
    """Return an id or a name that every database can store; `what` says which one, for the message."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{what} is a {type(name).__name__}; it must be a string")
    if not name:
        raise InvalidArgumentError(f"{what} is empty; give at least one character")
    if "\0" in name:
        raise InvalidArgumentError(f"{what} {name!r} has a NUL character, which databases cannot store")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} {name!r} has half a surrogate pair, which is no text") from None
    if size_bytes > MAX_ID_BYTES:
        raise InvalidArgumentError(f"{what} is {size_bytes} bytes long; at most {MAX_ID_BYTES} are possible")
    return name


def check_optional_name(name: str | None, what: str) -> str | None:
    """Return None, or a name that `check_name` accepts."""
    return None if name is None else check_name(name, what)


def epoch_milliseconds(at: datetime | None, what: str) -> int | None:
    """Return an aware instant as milliseconds since the epoch, and None as None."""
    if at is None:
        return None
    if at.tzinfo is None:
        raise InvalidArgumentError(f"{what} {at} has no time zone; give an aware datetime, such as datetime.now(UTC)")
    return int(at.timestamp() * 1000)


@contextmanager
def refusing_invalid(what: str) -> Iterator[None]:
    """Turn a refusal of the wire models into one InvalidArgumentError that names every field."""
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, line['loc']))}: {line['msg']}" for line in error.errors())
        raise InvalidArgumentError(f"{what}: {problems}") from error
