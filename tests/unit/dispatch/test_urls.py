"""Worker URLs have one written form, and what is none is refused with a clear text (C-045)."""

import pytest

from server_stub.core.urls import normalise_worker_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/", "http://h:1"),
        ("http://h:1", "http://h:1"),
        ("http://h:1/api", "http://h:1/api"),
        ("http://h:1/api/", "http://h:1/api"),
        ("http://h:1//", "http://h:1"),
        ("HTTP://Worker.Example:80/Api", "http://worker.example/Api"),
        ("https://worker:443", "https://worker"),
        ("https://worker:80", "https://worker:80"),
        ("http://[::1]:8803/", "http://[::1]:8803"),
        ("http://h:1/?", "http://h:1"),
        ("http://h:1?a=B/c", "http://h:1?a=B/c"),
        ("http://h:1/api/?a=b&c", "http://h:1/api?a=b&c"),
        ("http://[2001:DB8::1]", "http://[2001:db8::1]"),
    ],
)
def test_worker_url_has_one_written_form(url: str, expected: str) -> None:
    assert normalise_worker_url(url) == expected
    assert normalise_worker_url(expected) == expected


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "does not begin with http"),
        ("worker:8803", "does not begin with http"),
        ("worker.example", "does not begin with http"),
        ("http:worker", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("ftp://worker", "does not begin with http"),
        ("http://", "has no host"),
        ("http://:8803", "has no host"),
        ("http://h:1/#top", "has a fragment"),
        ("http://h:1/?a=b#top", "has a fragment"),
        ("http://h:port", "[Pp]ort"),
        ("http://h:99999", "[Pp]ort"),
        ("http://[::1", "IPv6"),
        ("http://h:1/a b", "a blank or a control character"),
        ("http://h\r\nHost: evil", "a blank or a control character"),
    ],
)
def test_what_is_no_worker_url_is_refused_with_the_reason(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        normalise_worker_url(url)


def test_refusal_does_not_repeat_credentials() -> None:
    with pytest.raises(ValueError, match="user name") as refusal:
        normalise_worker_url("http://user:secret@host")

    assert "secret" not in str(refusal.value)
