"""What a client is told once, when it is made."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from xdb_sdk._duration import check_duration, is_number
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._names import check_name
from xdb_sdk.client._urls import base_url
from xdb_sdk.protocol import DEFAULT_NAMESPACE

_LEAST_REQUEST_TTL = timedelta(hours=1)
"""No server is set to remember requests for less (`request_ttl`)."""


def _require_at_least_one(value: float, name: str) -> None:
    if not is_number(value) or value < 1:
        raise InvalidArgumentError(f"{name} is {value!r}; it must be a number, at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRetryPolicy:
    """When a client repeats a request by itself.

    It does when no answer came, and when the server answers that it is busy, is carrying the request out, or has
    failed. What changes something is repeated with the same request id, by which the server carries it out once. The
    method of an RPC may run again then, but for one that is `exclusive` not while it still runs.

    A wait for a process or a state goes on through an outage of the server until its own timeout, and without one for
    as long as it takes: for it, only the pauses below count.

    Attributes:
        max_attempts: Requests made for one call, the first included; 1 repeats nothing, not even in a wait.
        initial_backoff: The pause before the second attempt.
        backoff_coefficient: What each further pause is multiplied by.
        max_backoff: The longest pause, unless the server's Retry-After asks for a longer one.
        max_total_time: No attempt begins later than this after the first; at most an hour, for which every server
            remembers a request.
        random: A number in [0, 1) for each pause, which is drawn between half its length and all of it.

    Raises:
        InvalidArgumentError: A number or a duration is out of range.

    Source: semantics 6.9, idempotency-and-shards D.2.
    """

    max_attempts: int = 10
    initial_backoff: timedelta = timedelta(milliseconds=100)
    backoff_coefficient: float = 2.0
    max_backoff: timedelta = timedelta(seconds=2)
    max_total_time: timedelta = timedelta(seconds=30)
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("max_attempts", "backoff_coefficient"):
            _require_at_least_one(getattr(self, name), name)
        for name in ("initial_backoff", "max_backoff", "max_total_time"):
            if check_duration(getattr(self, name), name) < timedelta(0):
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.max_total_time > _LEAST_REQUEST_TTL:
            raise InvalidArgumentError(
                f"max_total_time is {self.max_total_time}; at most {_LEAST_REQUEST_TTL} are possible, "
                "since a server that has forgotten a request carries it out again"
            )

    @classmethod
    def none(cls) -> "ClientRetryPolicy":
        """Repeat nothing."""
        return cls(max_attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Where the server and the worker are, and how calls are made.

    Attributes:
        server_url: Base URL of the server, with a path prefix if it stands behind one.
        worker_url: Base URL at which the *server* reaches the worker; it is stored with each process that is started.
        api_timeout: How long a call that does not wait for user code may take.
        long_poll_api_max_wait_time: The longest one request of a wait; waits repeat it. Some proxies cut requests at
            30 s. The server cuts it to 30 s.
        namespace: The namespace of every process id that is given to the client.
        retry: When a failed request is repeated.
        max_batch_calls: The most calls that an AsyncClient puts into one request.
        max_batch_bytes: The most bytes that an AsyncClient puts into one request; a larger call travels alone.

    Raises:
        InvalidArgumentError: A URL cannot be called, or a number is out of range.
    """

    server_url: str = "http://127.0.0.1:8801"
    worker_url: str = "http://127.0.0.1:8802"
    api_timeout: timedelta = timedelta(seconds=60)
    long_poll_api_max_wait_time: timedelta = timedelta(seconds=20)
    namespace: str = DEFAULT_NAMESPACE
    retry: ClientRetryPolicy = ClientRetryPolicy()
    max_batch_calls: int = 256
    max_batch_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "server_url", base_url(self.server_url, "server_url"))
        object.__setattr__(self, "worker_url", base_url(self.worker_url, "worker_url"))
        check_name(self.namespace, "namespace")
        for name in ("api_timeout", "long_poll_api_max_wait_time"):
            if check_duration(getattr(self, name), name) <= timedelta(0):
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; it must be longer than nothing")
        for name in ("max_batch_calls", "max_batch_bytes"):
            _require_at_least_one(getattr(self, name), name)

    @classmethod
    def local_default(cls) -> "ClientOptions":
        """A server on 127.0.0.1:8801 and a worker on 127.0.0.1:8802."""
        return cls()
