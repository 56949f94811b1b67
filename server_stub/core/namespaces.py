"""Some namespaces, or all of them: what settings name."""

import re
from dataclasses import dataclass
from typing import Final, Self

_ANY: Final = "*"
_NO_NAMES: Final = re.compile(r"""[\s\[\](){}"';\x00]|\*.|.\*""")
"""What setting names by mistake leaves in them; a * is a name alone, and stands for no part of one."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Some namespaces, or all of them."""

    names: frozenset[str] = frozenset()
    is_all: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read names separated by commas; * stands for all.

        Raises:
            ValueError: A name is given besides *, or one that looks like a list of another notation or like several.
        """
        names = frozenset(name.strip() for name in text.split(",")) - {""}
        for name in sorted(names):
            if _NO_NAMES.search(name):
                raise ValueError(
                    f"{name!r} in {text!r} is no name of a namespace; write names separated by commas, "
                    "without quotes, brackets or blanks, such as default,tests"
                )
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
