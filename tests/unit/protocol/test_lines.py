"""Lines of a batch, without any HTTP."""

import pytest

from xdb_sdk.protocol import AnswerLine, LineSplitter, answer_line, call_id_of


def split(*chunks: bytes, max_line_bytes: int = 100) -> list[bytes]:
    splitter = LineSplitter(max_line_bytes)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.rest()


@pytest.mark.parametrize(
    "chunks",
    [
        (b"one\ntwo\n",),
        (b"one\ntwo",),
        (b"o", b"n", b"e", b"\n", b"two"),
        (b"one\n", b"two\n", b""),
        (b"\n\none\n  \n", b"\ntwo\r\n", b" "),
    ],
    ids=["whole", "no last newline", "byte by byte", "empty last chunk", "blank lines"],
)
def test_lines_are_the_same_however_they_are_cut_into_chunks(chunks: tuple[bytes, ...]) -> None:
    lines = split(*chunks)

    assert [line.strip() for line in lines] == [b"one", b"two"]


def test_line_is_given_as_soon_as_its_end_has_come() -> None:
    splitter = LineSplitter(100)

    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o\n") == [b"two"]


@pytest.mark.parametrize("size", range(1, 24))
def test_line_over_the_limit_is_given_cut_between_its_neighbours(size: int) -> None:
    text = b"five5\n123456789\nlast5\n"

    lines = split(*(text[at : at + size] for at in range(0, len(text), size)), max_line_bytes=5)

    assert lines == [b"five5", b"123456", b"last5"]


def test_line_without_end_is_given_once_when_it_outgrows_the_limit() -> None:
    splitter = LineSplitter(5)

    assert splitter.feed(b"12345") == []
    assert splitter.feed(b"6789") == [b"123456"]
    assert splitter.feed(b"and so on") == []
    assert splitter.rest() == []


@pytest.mark.parametrize(
    ("line", "call_id"),
    [
        (b'{"callId": 7, "operation": "juggle"}', 7),
        (b'{"callId": 7, "operation": "exec', 7),
        (b'{"callId": true}', -1),
        (b'{"callId": "7"}', -1),
        (b'{"callId": ' + b"7" * 4000 + b"}", -1),
        (b'{"callId": ' + b"7" * 5000 + b"}", -1),
        (b"[7]", -1),
        (b"hello", -1),
        (b"\xff\xfe", -1),
    ],
    ids=["whole", "cut short", "bool", "text", "too large", "endless", "list", "no JSON", "no text"],
)
def test_call_id_of_a_bad_line_is_found_where_there_is_one(line: bytes, call_id: int) -> None:
    assert call_id_of(line) == call_id


@pytest.mark.parametrize("retry_after_s", [None, 1, 1.5, 1234567.5])
def test_answer_line_is_an_answer_line_of_the_protocol(retry_after_s: float | None) -> None:
    line = answer_line(3, 429, b'{"errorType":"WorkerFull"}', retry_after_s)

    assert line.endswith(b"\n")
    assert AnswerLine.model_validate_json(line) == AnswerLine(
        call_id=3, status=429, body={"errorType": "WorkerFull"}, retry_after_s=retry_after_s
    )
