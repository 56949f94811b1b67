"""The one written form of the URL under which a server or a worker is reached, and of the paths below it."""

from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_URL_LENGTH = 2_048


def normal_url(url: str) -> str:
    """Give the form of a base URL that paths are joined with, so that one server or worker has one URL.

    Scheme and host are in lower case, a port that the scheme implies is left out, and so are slashes at the end of the
    path. A path is kept as a prefix, and a query for every request.

    Raises:
        ValueError: It cannot be called. The text begins with the URL, without a password, and says why.

    Example:
        normal_url("HTTP://Worker:80/api/?tenant=7")  # "http://worker/api?tenant=7"
    """
    if len(url) > _MAX_URL_LENGTH:
        raise _refusal(url[:60] + "...", f"is longer than {_MAX_URL_LENGTH} characters")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise _refusal(url, "has spaces or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refusal(url, f"is not a URL ({error})") from error
    if "://" not in url or parts.scheme not in _DEFAULT_PORTS:
        raise _refusal(url, "does not begin with http:// or https://")
    if "@" in parts.netloc:
        raise _refusal(f"{parts.scheme}://...", "has a user name or password, which are not sent; use a header instead")
    if "#" in url:
        raise _refusal(url, "has a fragment (#...)")
    if port == 0:
        raise _refusal(url, "has port 0")
    host = _host(url, parts)
    authority = host if port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{authority}{parts.path.rstrip('/')}{query}"


def join_url(base_url: str, path: str) -> str:
    """Give the URL of a path, which begins with a slash, below a base URL in normal form; a query stays at the end."""
    base, mark, query = base_url.partition("?")
    return f"{base}{path}{mark}{query}"


def _host(url: str, parts: SplitResult) -> str:
    host = parts.hostname
    if not host:
        raise _refusal(url, "names no host")
    if ":" in host:
        return f"[{host}]"
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise _refusal(url, "has a host that cannot be looked up: parts of its name are empty or too long") from error
    return host


def _refusal(url: str, problem: str) -> ValueError:
    return ValueError(f"{url!r} {problem}; write it like http://127.0.0.1:8802 or https://workers.example/prefix")
