import pytest

from xdb_sdk import _errors
from xdb_sdk.client import ClientOptions
from xdb_sdk.client._urls import base_url, url_of


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/api", "http://h:1/api"),
        ("http://h:1/api/", "http://h:1/api"),
        ("http://h:1/api/?tenant=7", "http://h:1/api?tenant=7"),
        ("http://[::1]:8802/", "http://[::1]:8802"),
        ("https://Worker.Example.COM/Api", "https://worker.example.com/Api"),
    ],
)
def test_a_url_that_can_be_called_is_brought_into_its_normal_form(given: str, normal: str) -> None:
    assert base_url(given, "worker_url") == normal


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "does not begin with http:// or https://"),
        ("localhost:8801", "does not begin with http:// or https://"),
        ("127.0.0.1", "does not begin with http:// or https://"),
        ("file:///etc/passwd", "does not begin with http:// or https://"),
        ("http://", "names no host"),
        ("http:///api", "names no host"),
        ("http://h:99999", "is not a URL"),
        ("http://h:port", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://h:0", "has port 0"),
        ("http://user:secret@h", "has a user name or password"),
        ("http://h/#top", "has a fragment"),
        ("http://h /api", "has spaces or control characters"),
        ("http://h/\0", "has spaces or control characters"),
        ("http://h/" + "x" * 2048, "is longer than 2048 characters"),
    ],
)
def test_a_url_that_cannot_be_called_is_refused_with_its_name_and_the_reason(given: str, problem: str) -> None:
    with pytest.raises(_errors.InvalidArgumentError) as refusal:
        base_url(given, "worker_url")

    assert str(refusal.value).startswith("worker_url ")
    assert problem in str(refusal.value)


def test_a_path_goes_behind_the_prefix_and_before_the_query() -> None:
    assert url_of("http://h:1/api?tenant=7", "/v1/start") == "http://h:1/api/v1/start?tenant=7"


def test_client_options_check_both_urls() -> None:
    options = ClientOptions(server_url="http://H:1/", worker_url="http://[::1]:2/w/")

    assert (options.server_url, options.worker_url) == ("http://h:1", "http://[::1]:2/w")
    with pytest.raises(_errors.InvalidArgumentError, match="server_url"):
        ClientOptions(server_url="localhost")
    with pytest.raises(_errors.InvalidArgumentError, match="worker_url"):
        ClientOptions(worker_url="localhost")
