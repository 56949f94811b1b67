"""The lines of a batch: cut out of the chunks of a request body, parsed, and answered (application/x-ndjson)."""

from pydantic import TypeAdapter
from pydantic_core import from_json

from xdb_sdk.protocol import WorkerLine
from xdb_sdk.worker._failure import WorkerResponse

UNKNOWN_CALL_ID = -1
_LINE: TypeAdapter[WorkerLine] = TypeAdapter(WorkerLine)


class LineSplitter:
    """Cuts chunks of bytes into lines. Blank lines are left out."""

    def __init__(self) -> None:
        self._unfinished: list[bytes] = []

    def feed(self, chunk: bytes, *, is_last: bool) -> list[bytes]:
        """Take a chunk and return the lines that it completes; the last chunk completes what is left."""
        first, *others = chunk.split(b"\n")
        self._unfinished.append(first)
        if others or is_last:
            others.insert(0, b"".join(self._unfinished))
            self._unfinished = [] if is_last else [others.pop()]
        return [line for line in others if line.strip()]


def parse_line(line: bytes) -> WorkerLine:
    """Read one call of a batch.

    Raises:
        ValidationError: It is no JSON, or no call that this worker knows.
    """
    return _LINE.validate_json(line)


def call_id_of(line: bytes) -> int:
    """Find the call id of a line that cannot be parsed, even if it is cut short; `UNKNOWN_CALL_ID` if it has none."""
    try:
        data = from_json(line, allow_partial=True)
    except ValueError:
        return UNKNOWN_CALL_ID
    call_id = data.get("callId") if isinstance(data, dict) else None
    return call_id if type(call_id) is int and call_id.bit_length() < 64 else UNKNOWN_CALL_ID


def answer_line(call_id: int, response: WorkerResponse) -> bytes:
    """Write an `AnswerLine`. The body is JSON already and goes in as it is, so that nothing is encoded twice."""
    if response.retry_after_s is None:
        return b'{"callId":%d,"status":%d,"body":%b}\n' % (call_id, response.status, response.body)
    return b'{"callId":%d,"status":%d,"body":%b,"retryAfterS":%a}\n' % (
        call_id,
        response.status,
        response.body,
        response.retry_after_s,
    )
