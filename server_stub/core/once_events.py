"""Requests of two halves, and those that call a worker, carried out once (idempotency-and-shards D.3, D.4)."""

from dataclasses import dataclass

from server_stub.core.call_events import RpcReturned
from server_stub.core.changes import Changes
from server_stub.core.client_events import PublishMessages, StartProcess
from server_stub.core.edit import Edit
from server_stub.core.events import Event, need_published
from server_stub.core.model import RequestRecord
from server_stub.core.outcomes import Verdict
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import Refused
from server_stub.core.requests import RequestClaim, find_answer, put_record, remember
from xdb_sdk.protocol import (
    ErrorSubType,
    PublishAnswer,
    PublishOrStartAnswer,
    PublishRequest,
    RpcServiceAnswer,
    StartAnswer,
)


@dataclass(frozen=True, slots=True)
class HalfClaims:
    """The claims of the two halves of a request, which are remembered each for itself."""

    start: RequestClaim
    other: RequestClaim


@dataclass(frozen=True, slots=True)
class PublishOrStart(Event[PublishOrStartAnswer]):
    """A client publishes to the running execution, which is started if there is none.

    With a request id each half is carried out if it was not before; what is published goes to the execution that the
    start half led to. `start` returns the running execution rather than refuse.
    """

    start: StartProcess
    publish: PublishRequest
    claims: HalfClaims | None = None

    def select(self, selection: Selection) -> None:
        self.start.select(selection)
        if self.claims is not None:
            selection.request_keys.update((self.claims.start.key, self.claims.other.key))

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        execution_id = loaded.current.get(self.start.key)
        if execution_id is not None:
            need_published(needs, loaded.executions[execution_id], self.publish.messages)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> PublishOrStartAnswer:
        known_start = known_publish = None
        if self.claims is not None:
            known_start = find_answer(loaded, self.claims.start, StartAnswer, now_ms)
            known_publish = find_answer(loaded, self.claims.other, PublishAnswer, now_ms)
        if known_start is not None and known_publish is None:
            self._require_running(loaded, known_start.process_execution_id)
        started = known_start or self.start.apply(loaded, changes, now_ms)
        published = known_publish or self._publish(started, loaded, changes, now_ms)
        if self.claims is not None and known_start is None:
            remember(loaded, changes, self.claims.start, started, now_ms)
        if self.claims is not None and known_publish is None:
            remember(loaded, changes, self.claims.other, published, now_ms)
        return of_halves(started, published)

    def _publish(self, started: StartAnswer, loaded: Loaded, changes: Changes, now_ms: int) -> PublishAnswer:
        event = PublishMessages(self.publish)
        if started.duplicate or started.already_started:
            return event.apply(loaded, changes, now_ms)
        # Nothing that is refused may have started it.
        execution = loaded.executions[started.process_execution_id]
        return event.publish_into(Edit(execution, changes, now_ms, self.publish.request_id))

    def _require_running(self, loaded: Loaded, execution_id: str) -> None:
        execution = loaded.executions.get(execution_id)
        if execution is not None and execution.process.is_running:
            return
        raise Refused(
            ErrorSubType.PROCESS_NOT_RUNNING,
            f"process {self.publish.process_id!r} ({execution_id}), which this request started before, has closed; "
            "nothing was published. Publish with a new request id to start another execution",
            execution_id,
        )


def of_halves(started: StartAnswer, published: PublishAnswer) -> PublishOrStartAnswer:
    """Give the answer of a request whose halves are answered."""
    # Where only the publish half is known, the execution that it went to has been followed by the one started now.
    is_followed = published.duplicate and not started.duplicate
    return PublishOrStartAnswer(
        process_execution_id=started.process_execution_id if is_followed else published.process_execution_id,
        started=not started.already_started,
        published=published.published,
        sequence_ids=published.sequence_ids,
        duplicate=published.duplicate,
        mismatch=published.mismatch or started.mismatch,
    )


@dataclass(frozen=True, slots=True)
class BeginBulk(Event[int]):
    """A client begins to change many executions, page by page, none of which is of its process id.

    Gives the instant at which the request came first: what has started since is left alone, however often it comes.
    """

    is_repeatable = True

    claim: RequestClaim

    def select(self, selection: Selection) -> None:
        selection.request_keys.add(self.claim.key)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> int:
        record = loaded.requests.get(self.claim.key)
        if record is None or record.expires_at_ms <= now_ms:
            return put_record(loaded, changes, self.claim, "", "{}", now_ms).created_at_ms
        if record.fingerprint == self.claim.fingerprint:
            return record.created_at_ms
        raise Refused(
            ErrorSubType.REQUEST_ID_REUSED,
            f"request id {self.claim.key.request_id!r} was used for other filters or another change; "
            "a new request needs a new id",
        )


@dataclass(frozen=True, slots=True)
class ReserveRpc(Event[RpcServiceAnswer | RequestRecord]):
    """An exclusive RPC is about to be made: others of its request id are told to come back.

    Gives the reservation, or the answer if the RPC was made before. The claim's lifetime is that of the reservation.
    """

    is_repeatable = True

    process_execution_id: str
    claim: RequestClaim

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.process_execution_id)
        selection.request_keys.add(self.claim.key)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> RpcServiceAnswer | RequestRecord:
        answer = find_answer(loaded, self.claim, RpcServiceAnswer, now_ms)
        return answer or put_record(loaded, changes, self.claim, self.process_execution_id, None, now_ms)


@dataclass(frozen=True, slots=True)
class ReleaseRpc(Event[None]):
    """An exclusive RPC has failed, or has changed nothing: its request id is free again, unless reserved anew."""

    is_repeatable = True

    reserved: RequestRecord

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.reserved.process_execution_id)
        selection.request_keys.add(self.reserved.key)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> None:
        if loaded.requests.get(self.reserved.key) == self.reserved:
            changes.dropped_requests[self.reserved.key] = loaded.requests.pop(self.reserved.key)


@dataclass(frozen=True, slots=True)
class RpcReturnedOnce(Event[Verdict | RpcServiceAnswer]):
    """A worker answered an RPC that has a request id: of those that were made at the same time, the first counts.

    Gives the answer of the one that counts, if it is not this one. A reservation, whosesoever it is, is no answer.
    """

    is_repeatable = True

    event: RpcReturned
    claim: RequestClaim

    def select(self, selection: Selection) -> None:
        self.event.select(selection)
        selection.request_keys.add(self.claim.key)

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        self.event.add_needs(loaded, needs)

    def must_wait(self, loaded: Loaded, changes: Changes) -> bool:
        return self.event.must_wait(loaded, changes)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> Verdict | RpcServiceAnswer:
        record = loaded.requests.get(self.claim.key)
        if record is None or record.result is not None:
            known = find_answer(loaded, self.claim, RpcServiceAnswer, now_ms)
            if known is not None:
                return known
        verdict = self.event.apply(loaded, changes, now_ms)
        if verdict is Verdict.APPLIED:
            process_execution_id = self.event.process_execution_id
            answer = RpcServiceAnswer(process_execution_id=process_execution_id, output=self.event.answer.output)
            remember(loaded, changes, self.claim, answer, now_ms)
        return verdict
