"""Which workers a server may call: the rule behind the setting `allowed_worker_urls`."""

import re
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from typing import Self
from urllib.parse import urlsplit

_ANY = "*"
_ANY_LABEL = "*."
_LABEL = re.compile(r"[a-z0-9_-]+")
_AMBIGUOUS_PATH = re.compile(r"[%\\]|/\.{1,2}(?=[/;]|$)")
"""What other programs may read as another path: encoded characters, backslashes, and segments that lead upwards."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a URL leads. `authority` is host and port, without a port that the scheme implies."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL in normal form apart."""
        parts = urlsplit(url)
        return cls(parts.scheme, _canonical_authority(parts.netloc), parts.path)

    def includes(self, other: "_Place") -> bool:
        """Say whether another place is this one or below it."""
        if self.scheme != other.scheme or not _matches(self.authority, other.authority):
            return False
        if not self.path:
            return True
        return not _AMBIGUOUS_PATH.search(other.path) and f"{other.path}/".startswith(f"{self.path}/")


@dataclass(frozen=True, slots=True)
class AllowedUrls:
    """The URLs that a server may call. They are shown as `str`, and compared by what was given.

    Args:
        entries: Each allows the URLs that begin with it: scheme, host and port are equal, and the path is equal or
            continues after a slash. `*.` at the beginning of a host stands for one label: `https://*.example.com`
            allows `https://a.example.com`, but neither `https://example.com` nor `https://a.b.example.com`. A single
            `*` allows every URL.

    Raises:
        ValueError: An entry cannot be read; the text says which, and what is wrong with it.
    """

    entries: tuple[str, ...]
    _places: tuple[_Place, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the entries."""
        if not self.entries:
            raise ValueError("no URL is allowed, and no process could be started; write * to allow every URL")
        places = tuple(_place_of_entry(entry) for entry in self.entries if entry != _ANY)
        object.__setattr__(self, "_places", places)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read entries that are separated by commas.

        Raises:
            ValueError: There is none, or one cannot be read.
        """
        return cls(tuple(entry for part in text.split(",") if (entry := part.strip())))

    @property
    def is_any(self) -> bool:
        """Whether every URL is allowed."""
        return _ANY in self.entries

    def allow(self, url: str) -> bool:
        """Say whether a URL may be called.

        Names are compared as they are written, and not looked up: whoever owns an allowed name decides where it leads.

        Args:
            url: In normal form, see `normal_url`; the URL of a worker, or one of a path below it.
        """
        if self.is_any:
            return True
        place = _Place.of(url)
        return any(allowed.includes(place) for allowed in self._places)

    def __str__(self) -> str:
        """Write the entries as `parse` reads them."""
        return ",".join(self.entries)


def not_allowed(url: str) -> str:
    """Say that a URL is not called, and what decides that. What is allowed is not told to whoever asks."""
    return f"{url!r} is not among the URLs that this server may call; its setting allowed_worker_urls says which are"


def _place_of_entry(entry: str) -> _Place:
    from xdb_sdk.protocol import normal_url  # not above: help on the settings is shown without the wire models

    scheme, mark, rest = entry.partition("://")
    url = normal_url(f"{scheme}{mark}{rest.removeprefix(_ANY_LABEL)}")
    place = _Place.of(url)
    if "*" in url:
        raise ValueError(f"{entry!r} has a * elsewhere than in the place of the first label: https://*.example.com")
    if "?" in url:
        raise ValueError(f"{entry!r} has a query; a URL with any query is allowed by the part before it")
    if _AMBIGUOUS_PATH.search(place.path):
        raise ValueError(f"{entry!r} has a path with %, a backslash, or a segment . or ..; write it plainly")
    return replace(place, authority=_ANY_LABEL + place.authority) if rest.startswith(_ANY_LABEL) else place


def _canonical_authority(authority: str) -> str:
    """Write an address of IPv6 in its one form."""
    host, bracket, port = authority.removeprefix("[").partition("]")
    if not bracket:
        return authority
    try:
        return f"[{IPv6Address(host)}]{port}"
    except ValueError:
        return authority


def _matches(allowed: str, authority: str) -> bool:
    if not allowed.startswith(_ANY_LABEL):
        return allowed == authority
    label, _, rest = authority.partition(".")
    return rest == allowed.removeprefix(_ANY_LABEL) and _LABEL.fullmatch(label) is not None


ANY_URL = AllowedUrls((_ANY,))
