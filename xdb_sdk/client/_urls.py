"""Base URLs of servers and workers: checked once, joined with paths everywhere."""

from urllib.parse import SplitResult, urlsplit, urlunsplit

from xdb_sdk._errors import InvalidArgumentError

_MAX_URL_LENGTH = 2_048


def base_url(url: str, setting: str) -> str:
    """Check a base URL and bring it into its normal form.

    Args:
        url: An http or https URL. A path prefix, a trailing slash, a query and an IPv6 host in brackets are fine.
        setting: What the URL is, for the message, such as "server_url".

    Returns:
        The URL with a lower-case host and without trailing slashes of the path.

    Raises:
        InvalidArgumentError: The URL cannot be called, and why.
    """
    if not isinstance(url, str):
        raise InvalidArgumentError(f"{setting} is a {type(url).__name__}; it must be a string")
    problem, parts = _parse(url)
    if parts is None:
        raise InvalidArgumentError(f"{setting} {url!r} {problem}; write it like http://127.0.0.1:8801")
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), parts.query, ""))


def url_of(base: str, path: str) -> str:
    """Join a base URL in normal form with an absolute path; a query of the base stays at the end."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path + path))


def _parse(url: str) -> tuple[str, SplitResult | None]:
    if len(url) > _MAX_URL_LENGTH:
        return f"is longer than {_MAX_URL_LENGTH} characters", None
    if any(character.isspace() or not character.isprintable() for character in url):
        return "has spaces or control characters", None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is not a URL ({error})", None
    problem = _problem_of(parts, port)
    return problem, None if problem else parts


def _problem_of(parts: SplitResult, port: int | None) -> str:
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not parts.hostname:
        return "names no host"
    if port == 0:
        return "has port 0"
    if parts.username is not None or parts.password is not None:
        return "has a user name or password, which are not sent"
    if parts.fragment:
        return "has a fragment (#...)"
    return ""
