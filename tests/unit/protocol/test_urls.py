"""URLs of servers and workers have one written form, and what is none is refused with a clear text (C-045)."""

import pytest

from xdb_sdk.protocol import join_url, normal_url


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
        ("http://bücher.example.", "http://bücher.example."),
    ],
)
def test_url_has_one_written_form(url: str, expected: str) -> None:
    assert normal_url(url) == expected
    assert normal_url(expected) == expected


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "does not begin with http:// or https://"),
        ("worker:8803", "does not begin with http:// or https://"),
        ("127.0.0.1", "does not begin with http:// or https://"),
        ("http:worker", "does not begin with http:// or https://"),
        ("file:///etc/passwd", "does not begin with http:// or https://"),
        ("ftp://worker", "does not begin with http:// or https://"),
        ("http://", "names no host"),
        ("http:///api", "names no host"),
        ("http://:8803", "names no host"),
        ("http://.", "parts of its name are empty or too long"),
        ("http://a..b", "parts of its name are empty or too long"),
        (f"http://{'a' * 64}.example", "parts of its name are empty or too long"),
        ("http://h:1/#top", "has a fragment"),
        ("http://h:1/?a=b#", "has a fragment"),
        ("http://h:port", "is not a URL"),
        ("http://h:99999", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://h:0", "has port 0"),
        ("http://h:1/a b", "has spaces or control characters"),
        ("http://h/\0", "has spaces or control characters"),
        ("http://h\r\nHost: evil", "has spaces or control characters"),
        ("http://h/" + "x" * 2048, "is longer than 2048 characters"),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_reason(url: str, problem: str) -> None:
    with pytest.raises(ValueError) as refusal:
        normal_url(url)

    assert str(refusal.value).startswith(repr(url)[:30])
    assert problem in str(refusal.value)


def test_refusal_does_not_repeat_credentials() -> None:
    with pytest.raises(ValueError, match="user name") as refusal:
        normal_url("http://user:secret@host")

    assert "secret" not in str(refusal.value)


def test_path_goes_behind_the_prefix_and_before_the_query() -> None:
    assert join_url("http://h:1/api?tenant=7", "/v1/start") == "http://h:1/api/v1/start?tenant=7"
    assert join_url("http://h:1", "/v1/start") == "http://h:1/v1/start"
