"""Requests that are carried out once, however often they are sent (idempotency-and-shards D.1 to D.4).

The request of a change is remembered with its answer by a row that is written in the transaction of the change. Whoever
sends it again gets that answer, before anything else is looked at: also after the execution has closed, was replaced
or was deleted. A request that is refused is not remembered.

Requests of one process id meet at the lock of its execution: the second reads the rows under the lock, after the
first has written. Where there is no execution to lock, the primary key of the rows decides; the transaction that comes
second is repeated, and then finds the row.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.events import Event
from server_stub.core.model import RequestKey, RequestRecord
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import Refused
from xdb_sdk.protocol import ErrorSubType, RepeatableAnswer, RepeatableRequest, UpdateConfigRequest

AnswerT = TypeVar("AnswerT", bound=RepeatableAnswer)

_UNESSENTIAL: Final = frozenset(
    {
        *("request_id", "trace_context", "reason"),
        *("timeout_ms", "ignore_already_started"),  # of a start
        *("needs_queue_sizes", "exclusive"),  # of an RPC, and its timeout
    }
)
"""What a repetition may say otherwise: it does not change what is asked for."""


@dataclass(frozen=True, slots=True)
class RequestClaim:
    """A request's claim to be carried out once.

    Attributes:
        key: Names it.
        fingerprint: A hash of what it asks for.
        shard_id: That of its process id.
        lifetime_ms: How long it is remembered.
        rejects_mismatch: Refuses the id of a request that asked for something else, rather than repeat its answer.
    """

    key: RequestKey
    fingerprint: str
    shard_id: int
    lifetime_ms: int
    rejects_mismatch: bool = False

    def answer(self, record: RequestRecord, answer_type: type[AnswerT]) -> AnswerT:
        """Give the answer of the request that was carried out, as one of a duplicate.

        Raises:
            Refused: RETRY_LATER, it is being carried out; REQUEST_ID_REUSED, it asked for something else.
        """
        is_other = record.fingerprint != self.fingerprint
        if is_other and self.rejects_mismatch:
            raise Refused(
                ErrorSubType.REQUEST_ID_REUSED,
                f"request id {self.key.request_id!r} was used for another request of this kind; "
                "a new request needs a new id",
                record.process_execution_id,
            )
        if record.result is None:
            raise Refused(
                ErrorSubType.RETRY_LATER,
                f"request {self.key.request_id!r} is being carried out; repeat it to get its answer",
                record.process_execution_id,
            )
        answer = answer_type.model_validate_json(record.result)
        return answer.model_copy(update={"duplicate": True, "mismatch": is_other})


def fingerprint_of(request: RepeatableRequest) -> str:
    """Hash what a request asks for."""
    unessential = _UNESSENTIAL - {"timeout_ms"} if isinstance(request, UpdateConfigRequest) else _UNESSENTIAL
    asked = request.model_dump(mode="json", exclude=set(unessential), exclude_defaults=True)
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def find_answer(loaded: Loaded, claim: RequestClaim, answer_type: type[AnswerT], now_ms: int) -> AnswerT | None:
    """Give the answer of a request that was carried out before; None for a new one.

    Raises:
        Refused: See `RequestClaim.answer`.
    """
    record = loaded.requests.get(claim.key)
    if record is None or record.expires_at_ms <= now_ms:
        return None
    return claim.answer(record, answer_type)


def remember(loaded: Loaded, changes: Changes, claim: RequestClaim, answer: RepeatableAnswer, now_ms: int) -> None:
    """Remember that a request was carried out."""
    result = answer.model_dump_json(by_alias=True, exclude_defaults=True)
    put_record(loaded, changes, claim, answer.process_execution_id, result, now_ms)


def put_record(
    loaded: Loaded, changes: Changes, claim: RequestClaim, process_execution_id: str, result: str | None, now_ms: int
) -> RequestRecord:
    """Write the row of a request, in place of one that has expired or was a reservation."""
    if claim.key in loaded.requests and claim.key not in changes.requests:
        changes.dropped_requests[claim.key] = loaded.requests[claim.key]
    record = RequestRecord(
        key=claim.key,
        shard_id=claim.shard_id,
        process_execution_id=process_execution_id,
        fingerprint=claim.fingerprint,
        result=result,
        created_at_ms=now_ms,
        expires_at_ms=now_ms + claim.lifetime_ms,
    )
    loaded.requests[claim.key] = changes.requests[claim.key] = record
    return record


@dataclass(frozen=True, slots=True)
class Once(Event[AnswerT], Generic[AnswerT]):
    """A client's event that is applied once, however often it is sent."""

    is_repeatable = True

    event: Event[AnswerT]
    claim: RequestClaim
    answer_type: type[AnswerT]

    def select(self, selection: Selection) -> None:
        self.event.select(selection)
        selection.request_keys.add(self.claim.key)

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        self.event.add_needs(loaded, needs)

    def must_wait(self, loaded: Loaded, changes: Changes) -> bool:
        return self.event.must_wait(loaded, changes)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> AnswerT:
        answer = find_answer(loaded, self.claim, self.answer_type, now_ms)
        if answer is None:
            answer = self.event.apply(loaded, changes, now_ms)
            remember(loaded, changes, self.claim, answer, now_ms)
        return answer
