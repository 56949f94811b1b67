"""Lines of a batch, without any HTTP."""

import pytest

from xdb_sdk.protocol import AnswerLine
from xdb_sdk.worker._failure import WorkerResponse
from xdb_sdk.worker._lines import LineSplitter, answer_line, call_id_of


def split(*chunks: bytes) -> list[bytes]:
    splitter = LineSplitter()
    lines: list[bytes] = []
    for number, chunk in enumerate(chunks, start=1):
        lines += splitter.feed(chunk, is_last=number == len(chunks))
    return lines


@pytest.mark.parametrize(
    "chunks",
    [
        (b"one\ntwo\n",),
        (b"one\ntwo",),
        (b"o", b"n", b"e", b"\n", b"two"),
        (b"one\n", b"two\n", b""),
        (b"\n\none\n  \n", b"\ntwo\r\n"),
    ],
    ids=["whole", "no last newline", "byte by byte", "empty last chunk", "blank lines"],
)
def test_lines_are_the_same_however_they_are_cut_into_chunks(chunks: tuple[bytes, ...]) -> None:
    lines = split(*chunks)

    assert [line.strip() for line in lines] == [b"one", b"two"]


def test_line_is_returned_as_soon_as_its_newline_has_come() -> None:
    splitter = LineSplitter()

    assert splitter.feed(b"one\ntw", is_last=False) == [b"one"]
    assert splitter.feed(b"o\n", is_last=False) == [b"two"]


@pytest.mark.parametrize(
    ("line", "call_id"),
    [
        (b'{"callId": 7, "operation": "juggle"}', 7),
        (b'{"callId": 7, "operation": "exec', 7),
        (b'{"callId": true}', -1),
        (b'{"callId": "7"}', -1),
        (b'{"callId": ' + b"7" * 5000 + b"}", -1),
        (b"[7]", -1),
        (b"hello", -1),
        (b"\xff\xfe", -1),
    ],
    ids=["whole", "cut short", "bool", "text", "endless", "list", "no JSON", "no text"],
)
def test_call_id_of_a_bad_line_is_found_where_there_is_one(line: bytes, call_id: int) -> None:
    assert call_id_of(line) == call_id


@pytest.mark.parametrize("retry_after_s", [None, 1.5])
def test_answer_line_is_an_answer_line_of_the_protocol(retry_after_s: float | None) -> None:
    response = WorkerResponse(429, b'{"errorType":"WorkerFull"}', retry_after_s)

    line = answer_line(3, response)

    assert line.endswith(b"\n")
    assert AnswerLine.model_validate_json(line) == AnswerLine(
        call_id=3, status=429, body={"errorType": "WorkerFull"}, retry_after_s=retry_after_s
    )
