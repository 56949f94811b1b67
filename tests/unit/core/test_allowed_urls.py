"""Which worker URLs a server may call, however cunningly they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_stub.core.allowed_urls import ANY_URL, AllowedUrls
from xdb_sdk.protocol import EXECUTE_PATH, join_url, normal_url


def allows(entries: str, url: str) -> bool:
    return AllowedUrls.parse(entries).allow(normal_url(url))


@pytest.mark.parametrize(
    ("entries", "url"),
    [
        ("http://worker:8802", "http://worker:8802"),
        ("http://worker:8802", "http://worker:8802/"),
        ("http://worker:8802/", "http://worker:8802/any/prefix"),
        ("http://worker:8802", "http://worker:8802/a/../b%2Fc"),
        ("http://worker:8802", "http://worker:8802?tenant=7"),
        ("http://worker", "http://worker:80"),
        ("http://worker:80", "http://worker"),
        ("https://worker:443", "https://worker"),
        ("HTTP://Worker.Example", "http://worker.EXAMPLE"),
        ("http://a, http://b", "http://b"),
        ("http://worker/team", "http://worker/team"),
        ("http://worker/team/", "http://worker/team/a?b=/c"),
        ("https://*.example.com", "https://a.example.com/x"),
        ("https://*.example.com:8443/x", "https://A-1_b.example.com:8443/x/y"),
        ("http://[::1]:8802", "http://[0:0:0:0:0:0:0:1]:8802"),
        ("http://[2001:DB8:0::1]", "http://[2001:db8::1]:80"),
        ("http://10.0.0.5:8802", "http://10.0.0.5:8802"),
        ("http://bücher.example", "http://BÜCHER.example"),
        ("*", "http://anywhere"),
        ("http://a,*", "http://anywhere"),
    ],
)
def test_url_at_or_below_an_entry_is_allowed(entries: str, url: str) -> None:
    assert allows(entries, url)


@pytest.mark.parametrize(
    ("entries", "url"),
    [
        pytest.param("http://worker:8802", "https://worker:8802", id="other scheme"),
        pytest.param("http://worker:8802", "http://worker", id="other port"),
        pytest.param("http://worker", "http://worker:8080", id="port not implied"),
        pytest.param("https://worker", "https://worker:80", id="port of the other scheme"),
        pytest.param("http://worker", "http://worker.evil.example", id="host goes on"),
        pytest.param("http://worker", "http://worker2", id="host begins alike"),
        pytest.param("http://worker", "http://worker.", id="host with a dot at its end"),
        pytest.param("http://worker:88", "http://worker:8802", id="port begins alike"),
        pytest.param("http://worker", "http://evil/http://worker", id="entry in the path"),
        pytest.param("http://worker", "http://evil?http://worker", id="entry in the query"),
        pytest.param("http://worker", "http://evil\\.worker", id="backslash in the host"),
        pytest.param("http://worker", "http://ｗorker", id="host in wide letters"),
        pytest.param("http://127.0.0.1", "http://2130706433", id="address as a number"),
        pytest.param("http://127.0.0.1", "http://127.1", id="address with parts left out"),
        pytest.param("http://127.0.0.1", "http://[::ffff:127.0.0.1]", id="address of IPv4 in IPv6"),
        pytest.param("http://[::1]", "http://[::2]", id="other address of IPv6"),
        pytest.param("http://fass.example", "http://faß.example", id="name that old encodings make equal"),
        pytest.param("http://worker/team", "http://worker", id="above the path"),
        pytest.param("http://worker/team", "http://worker/teams", id="path begins alike"),
        pytest.param("http://worker/team", "http://worker/team;x", id="path with parameters"),
        pytest.param("http://worker/team", "http://worker/Team", id="path in another case"),
        pytest.param("http://worker/team", "http://worker//team", id="path behind an empty segment"),
        pytest.param("http://worker/team", "http://worker?/team", id="path in the query"),
        pytest.param("http://worker/team", "http://worker/team/../admin", id="path upwards"),
        pytest.param("http://worker/team", "http://worker/team/..", id="path upwards at its end"),
        pytest.param("http://worker/team", "http://worker/team/./a", id="path to itself"),
        pytest.param("http://worker/team", "http://worker/team/..;/admin", id="path upwards with parameters"),
        pytest.param("http://worker/team", "http://worker/team/%2e%2e/admin", id="path upwards, encoded"),
        pytest.param("http://worker/team", "http://worker/team/%252e%252e/admin", id="path upwards, encoded twice"),
        pytest.param("http://worker/team", "http://worker/team/..\\admin", id="path upwards with a backslash"),
        pytest.param("https://*.example.com", "https://example.com", id="no label"),
        pytest.param("https://*.example.com", "https://a.b.example.com", id="two labels"),
        pytest.param("https://*.example.com", "https://a.example.com.evil.example", id="host goes on after a label"),
        pytest.param("https://*.example.com", "https://aexample.com", id="no dot"),
        pytest.param("https://*.example.com", "https://a。b.example.com", id="two labels by another dot"),
        pytest.param("https://*.example.com", "https://a%2eb.example.com", id="encoded dot"),
        pytest.param("https://*.example.com", "https://a.example.com:8443", id="label and another port"),
        pytest.param("https://*.example.com/x", "https://a.example.com/y", id="label and another path"),
    ],
)
def test_url_that_is_not_below_an_entry_is_not_allowed(entries: str, url: str) -> None:
    assert not allows(entries, url)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("", "no URL is allowed"),
        (" , ", "no URL is allowed"),
        ("worker:8802", "'worker:8802' does not begin with http:// or https://"),
        ("http://a, worker", "'worker' does not begin with http:// or https://"),
        ("http://", "names no host"),
        ("http://ann:secret@worker", "has a user name or password"),
        ("http://worker/#x", "has a fragment"),
        ("http://worker?x=1", "has a query"),
        ("http://*", "elsewhere than in the place of the first label"),
        ("http://*:8802", "elsewhere than in the place of the first label"),
        ("http://a.*.example", "elsewhere than in the place of the first label"),
        ("http://a*.example", "elsewhere than in the place of the first label"),
        ("http://*.*.example", "elsewhere than in the place of the first label"),
        ("http://worker/*", "elsewhere than in the place of the first label"),
        ("*.example.com", "does not begin with http:// or https://"),
        ("http://worker/a/../b", "write it plainly"),
        ("http://worker/a%20b", "write it plainly"),
    ],
)
def test_entry_that_cannot_be_meant_is_refused(entries: str, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        AllowedUrls.parse(entries)

    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_entries_are_shown_as_they_can_be_given() -> None:
    allowed = AllowedUrls.parse(" http://a:8802/x ,https://*.b.example,")

    assert str(allowed) == "http://a:8802/x,https://*.b.example"
    assert AllowedUrls.parse(str(allowed)) == allowed
    assert str(ANY_URL) == "*"
    assert ANY_URL.is_any
    assert not allowed.is_any


AUTHORITIES = st.sampled_from(["a", "b", "a.b", "c.a.b", "a:8802", "[::1]", "[::1]:8802"])
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "", ".", ".."]), max_size=3).map("/".join)
URLS = st.builds("{}://{}/{}".format, st.sampled_from(["http", "https"]), AUTHORITIES, PATHS)


@given(URLS)
def test_url_is_allowed_by_its_own_origin_and_so_is_what_is_called_below_it(url: str) -> None:
    url = normal_url(url)
    allowed = AllowedUrls(("/".join(url.split("/")[:3]),))

    assert allowed.allow(url)
    assert allowed.allow(join_url(url, EXECUTE_PATH))


@given(URLS, URLS)
def test_allowed_url_still_is_with_the_path_of_a_call_and_another_is_not(entry: str, url: str) -> None:
    try:
        allowed = AllowedUrls((entry,))
    except ValueError:
        return
    url = normal_url(url)

    assert allowed.allow(join_url(url, EXECUTE_PATH)) == allowed.allow(url)
    if allowed.allow(url):
        assert url.startswith(normal_url(entry))
