"""The envelope: many calls in one request, in both directions, answers streamed one by one as they finish.

Request and response are application/x-ndjson. A request line is `{"callId", "operation", "body"}`, an answer line
`{"callId", "status", "body"}` in any order, with the status and body that the operation's own path would have given.
A line that cannot be parsed is answered with status 400 and its `callId` when that can be read, else -1.
"""

from xdb_sdk.protocol._base import Json, WireModel

BATCH_CONTENT_TYPE = "application/x-ndjson"


class AnswerLine(WireModel):
    """One answer in a batch. `retry_after_s` accompanies statuses 429 and 503."""

    call_id: int
    status: int
    body: Json = None
    retry_after_s: float | None = None
