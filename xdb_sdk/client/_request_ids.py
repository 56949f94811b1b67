"""The ids by which the server knows a request again, however often it is sent."""

import os
import time
from uuid import UUID

from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.protocol import MAX_REQUEST_ID_LENGTH

_RANDOM_MASK = (1 << 74) - 1
_RAND_B_BITS = 62
_VERSION = 7 << 76
_VARIANT = 0b10 << _RAND_B_BITS


def request_id_of(given: str | None) -> str:
    """Return the caller's id of a request, or make one.

    Args:
        given: What the caller gave; None to have an id made.

    Raises:
        InvalidArgumentError: It is no string of 1 to 128 printable ASCII characters.

    Source: idempotency-and-shards D.2.
    """
    return new_request_id() if given is None else check_request_id(given)


def new_request_id() -> str:
    """Make a UUID of version 7: it begins with the time, so that the server's rows of new requests lie together.

    Source: RFC 9562, section 5.7. The standard library has it only from Python 3.14 on.
    """
    random = int.from_bytes(os.urandom(10)) & _RANDOM_MASK
    rand_a, rand_b = random >> _RAND_B_BITS, random & ((1 << _RAND_B_BITS) - 1)
    unix_ms = time.time_ns() // 1_000_000
    return str(UUID(int=unix_ms << 80 | _VERSION | rand_a << 64 | _VARIANT | rand_b))


def check_request_id(request_id: str) -> str:
    """Return a request id that the server takes; raise what `request_id_of` does."""
    if not isinstance(request_id, str):
        raise InvalidArgumentError(f"request id is a {type(request_id).__name__}; it must be a string")
    if not request_id:
        raise InvalidArgumentError("request id is empty; leave it out to have one made, or give at least one character")
    if len(request_id) > MAX_REQUEST_ID_LENGTH:
        raise InvalidArgumentError(
            f"request id is {len(request_id)} characters long; at most {MAX_REQUEST_ID_LENGTH} are possible"
        )
    if not (request_id.isascii() and request_id.isprintable()):
        raise InvalidArgumentError(f"request id {request_id!r} has a character that is not printable ASCII")
    return request_id
