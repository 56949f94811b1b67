"""Lines of a batch, in both directions: cut out of the pieces of a body, identified, and written as answers.

The format is told in `batch.py`. Client, server and worker read with one rule: a line over the limit is given, cut, as
soon as it has outgrown it, and the rest of it is never kept.
"""

from pydantic_core import from_json

UNKNOWN_CALL_ID = -1
"""Stands for the call id of a line that tells none."""


class LineSplitter:
    """Cuts the pieces of a body into lines, without blank ones, and holds no more of a line than it may.

    A line that is too long is given as its first `max_line_bytes + 1` bytes, at once and not only at its end: so it is
    the only one for which `len(line) > max_line_bytes`, and `call_id_of` can still tell whose it is.

    Args:
        max_line_bytes: The longest line that is given whole, its line end not counted.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next piece, and give the lines that it ends or makes too long, in order."""
        lines: list[bytes] = []
        first, *others = chunk.split(b"\n")
        self._lengthen(first, lines)
        for part in others:
            self._end(lines)
            self._lengthen(part, lines)
        return lines

    def rest(self) -> list[bytes]:
        """After the last piece, give the line that no line end follows, if there is one."""
        lines: list[bytes] = []
        self._end(lines)
        return lines

    def _lengthen(self, part: bytes, lines: list[bytes]) -> None:
        if self._size_bytes > self._max_line_bytes:
            return
        self._parts.append(part)
        self._size_bytes += len(part)
        if self._size_bytes > self._max_line_bytes:
            lines.append(b"".join(self._parts)[: self._max_line_bytes + 1])
            self._parts.clear()

    def _end(self, lines: list[bytes]) -> None:
        line = b"".join(self._parts)
        self._parts.clear()
        self._size_bytes = 0
        if line.strip():
            lines.append(line)


def call_id_of(line: bytes) -> int:
    """Find the call id of a line that cannot be used, even if it is cut; `UNKNOWN_CALL_ID` if it has no usable one."""
    try:
        data = from_json(line, allow_partial=True)
    except ValueError:
        return UNKNOWN_CALL_ID
    call_id = data.get("callId") if isinstance(data, dict) else None
    return call_id if type(call_id) is int and call_id.bit_length() < 64 else UNKNOWN_CALL_ID


def answer_line(call_id: int, status: int, body: bytes, retry_after_s: float | None = None) -> bytes:
    """Write an `AnswerLine`. The body is JSON already and goes in as it is, so that nothing is encoded twice."""
    retry_after = b"" if retry_after_s is None else b',"retryAfterS":%a' % retry_after_s
    return b'{"callId":%d,"status":%d,"body":%b%b}\n' % (call_id, status, body, retry_after)
