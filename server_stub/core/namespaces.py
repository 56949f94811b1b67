"""Some namespaces, or all of them: what settings name."""

from dataclasses import dataclass
from typing import Final, Self

_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Some namespaces, or all of them."""

    names: frozenset[str] = frozenset()
    is_all: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read names separated by commas; * stands for all.

        Raises:
            ValueError: A name is given besides *.
        """
        names = frozenset(name.strip() for name in text.split(",")) - {""}
        if _ANY not in names:
            return cls(names)
        if len(names) > 1:
            raise ValueError(f"{text!r} has names besides *, which stands for all of them; give one or the other")
        return cls(is_all=True)

    def __contains__(self, namespace: str) -> bool:
        """Say whether a namespace is among them."""
        return self.is_all or namespace in self.names

    def __str__(self) -> str:
        """Give the text that is read as these."""
        return _ANY if self.is_all else ",".join(sorted(self.names))


NO_NAMESPACES: Final = Namespaces()
