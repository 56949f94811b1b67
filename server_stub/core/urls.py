"""The one written form of a worker's URL, so that calls for one worker meet in one lane."""

from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalise_worker_url(url: str) -> str:
    """Give the URL that the worker's paths are joined with: lower-case scheme and host, no slash after the path.

    A path is kept as a prefix, and a query for every request; a port that the scheme implies is left out.

    Raises:
        ValueError: It is no URL of a worker. The text says what is wrong and what one looks like.

    Example:
        normalise_worker_url("HTTP://Worker:80/api/")  # "http://worker/api"
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise _refusal(url, "it contains a blank or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refusal(url, str(error)) from error
    scheme = parts.scheme.lower()
    if "://" not in url or scheme not in _DEFAULT_PORTS:
        raise _refusal(url, "it does not begin with http:// or https://")
    if not parts.hostname:
        raise _refusal(url, "it has no host")
    if "@" in parts.netloc:
        raise _refusal(f"{scheme}://...", "it contains a user name; send credentials in a header instead")
    if "#" in url:
        raise _refusal(url, "it has a fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    authority = host if port in (None, _DEFAULT_PORTS[scheme]) else f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{authority}{parts.path.rstrip('/')}{query}"


def join_path(worker_url: str, path: str) -> str:
    """Give the URL of one of the worker's paths; a query of the worker's URL stays at the end."""
    base, mark, query = worker_url.partition("?")
    return f"{base}{path}{mark}{query}"


def _refusal(url: str, problem: str) -> ValueError:
    return ValueError(
        f"invalid worker URL {url!r}: {problem}; it is the address under which the worker is served, "
        "like http://127.0.0.1:8803 or https://workers.example/prefix"
    )
