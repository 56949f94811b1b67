"""Checks of what a caller gives, made before anything is sent (semantics 1.7)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from pydantic import ValidationError

from xdb_sdk._duration import check_instant, since_epoch_ms
from xdb_sdk._errors import InvalidArgumentError


def epoch_milliseconds(at: datetime | None, what: str) -> int | None:
    """Return an aware instant as milliseconds since the epoch, and None as None."""
    return None if at is None else since_epoch_ms(check_instant(at, what))


@contextmanager
def refusing_invalid(what: str) -> Iterator[None]:
    """Turn a refusal of the wire models into one InvalidArgumentError that names every field."""
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, line['loc']))}: {line['msg']}" for line in error.errors())
        raise InvalidArgumentError(f"{what}: {problems}") from error
