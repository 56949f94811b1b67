"""What makes a request one that is carried out once: its claim (idempotency-and-shards D.2, D.3)."""

from collections import Counter
from dataclasses import replace

from server_stub.core.model import ProcessKey, RequestKey, RequestType
from server_stub.core.requests import RequestClaim, fingerprint_of
from server_stub.core.shards import shard_of
from xdb_sdk.protocol import RepeatableAnswer, RepeatableRequest


class Claims:
    """Makes the claims of requests, and counts those that were carried out before.

    Args:
        num_shards: How many shards process ids are spread over.
        lifetime_ms: How long a request is remembered.
        rejects_mismatch: Whether the id of a request that asked for something else is refused.
    """

    def __init__(self, *, num_shards: int, lifetime_ms: int, rejects_mismatch: bool) -> None:
        self._num_shards = num_shards
        self._lifetime_ms = lifetime_ms
        self._rejects_mismatch = rejects_mismatch
        self.duplicates: Counter[RequestType] = Counter()
        self.mismatches: Counter[RequestType] = Counter()

    def of(
        self,
        request: RepeatableRequest,
        key: ProcessKey,
        request_type: RequestType,
    ) -> RequestClaim | None:
        """Give the claim of a request; None for one without an id, which is carried out however often it comes.

        Args:
            request: What is asked for.
            key: The process id that it is about.
            request_type: Of what kind it is.
        """
        if request.request_id is None:
            return None
        return RequestClaim(
            key=RequestKey(*key, request_type, request.request_id),
            fingerprint=fingerprint_of(request),
            shard_id=shard_of(key, self._num_shards),
            lifetime_ms=self._lifetime_ms,
            rejects_mismatch=self._rejects_mismatch,
        )

    def count(self, request_type: RequestType, answer: RepeatableAnswer) -> None:
        """Count an answer of a request that was carried out before."""
        if answer.duplicate:
            self.duplicates[request_type] += 1
            self.mismatches[request_type] += answer.mismatch


def reservation(claim: RequestClaim, lifetime_ms: int) -> RequestClaim:
    """Give the claim of a request that is about to be carried out, for as long as that may take."""
    return replace(claim, lifetime_ms=lifetime_ms)
