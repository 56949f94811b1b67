"""Names and ids that every database can store, and how types are named in messages."""

from typing import Any, get_args

from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.protocol import MAX_ID_BYTES


def check_name(name: str, what: str) -> str:
    """Return a name, if it can be stored.

    Args:
        name: An id or a name.
        what: What it names; the error message begins with it.

    Raises:
        InvalidArgumentError: It is no string, is empty, is longer than 255 bytes in UTF-8, or holds a NUL or half of a
            surrogate pair.
    """
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


def type_text(type_hint: Any) -> str:
    """Write a type hint for a message, as users write it."""
    is_class = isinstance(type_hint, type) and not get_args(type_hint)
    return getattr(type_hint, "__name__", str(type_hint)) if is_class else str(type_hint)
