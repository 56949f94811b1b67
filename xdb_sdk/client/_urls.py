"""URLs that a caller gives."""

from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.protocol import normal_url


def base_url(url: str, setting: str) -> str:
    """Check a base URL and bring it into its normal form.

    Args:
        url: An http or https URL. A path prefix, a trailing slash, a query and an IPv6 host in brackets are fine.
        setting: What the URL is, for the message, such as "server_url".

    Raises:
        InvalidArgumentError: The URL cannot be called, and why.
    """
    if not isinstance(url, str):
        raise InvalidArgumentError(f"{setting} is a {type(url).__name__}; it must be a string")
    try:
        return normal_url(url)
    except ValueError as error:
        raise InvalidArgumentError(f"{setting} {error}") from error
