"""The pages of the documentation, and the code blocks in them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r'--8<-- "([^":]+)(?::([\w-]+))?"\n')


@dataclass(frozen=True)
class Block:
    """A code block: where it stands, its language, and its text."""

    page: Path
    language: str
    text: str

    def include(self) -> tuple[Path, str | None] | None:
        """Give the file and the section that the block is made of, None if it is written out."""
        found = _INCLUDE.fullmatch(self.text)
        return (ROOT / found[1], found[2]) if found else None

    def is_from_examples(self) -> bool:
        """Say whether the examples hold this very text."""
        return any(dedent(self.text).strip() in text for text in example_texts())


def blocks_of(page: Path) -> list[Block]:
    """Find the code blocks of a page, in order."""
    return [Block(page, language, text) for language, text in _FENCE.findall(page.read_text())]


def all_blocks() -> list[Block]:
    """Find the code blocks of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]


def name_of(page: Path) -> str:
    """Name a page in the id of a test."""
    return str(page.relative_to(ROOT))


@cache
def example_texts() -> tuple[str, ...]:
    """Read the sources and outputs of all examples."""
    examples = ROOT / "examples"
    return tuple(path.read_text() for path in examples.rglob("*") if path.suffix in (".py", ".txt", ".sql"))
