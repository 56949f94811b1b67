"""Checks of what a caller gives, made before anything is sent (semantics 1.7)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from pydantic import ValidationError

from xdb_sdk._duration import since_epoch_ms
from xdb_sdk._errors import InvalidArgumentError


def epoch_milliseconds(at: datetime | None, what: str) -> int | None:
    """Return an aware instant as milliseconds since the epoch, and None as None."""
    if at is None:
        return None
    if at.utcoffset() is None:
        raise InvalidArgumentError(f"{what} {at} has no time zone; give an aware datetime, such as datetime.now(UTC)")
    return since_epoch_ms(at)


@contextmanager
def refusing_invalid(what: str) -> Iterator[None]:
    """Turn a refusal of the wire models into one InvalidArgumentError that names every field."""
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, line['loc']))}: {line['msg']}" for line in error.errors())
        raise InvalidArgumentError(f"{what}: {problems}") from error
