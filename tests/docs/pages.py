"""The pages of the documentation, and the code blocks in them.

A block below a line `<!-- from: examples/user_signup/process.py:verify -->` is the section `verify` of that file, so
that a page can be read without building anything. `python -m tests.docs.pages` writes these blocks anew after a change.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_BLOCK = re.compile(r"^(?:<!-- from: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^ *# \[(?:start|end):\w+\]\n", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block: where it stands, its language, its text, and the file and section it is a copy of, if any."""

    page: Path
    language: str
    text: str
    source: str | None


def blocks_of(page: Path) -> list[Block]:
    """Find the code blocks of a page, in order."""
    return [Block(page, language, text, source or None) for source, language, text in _BLOCK.findall(page.read_text())]


def all_blocks() -> list[Block]:
    """Find the code blocks of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]


def name_of(page: Path) -> str:
    """Name a page in the id of a test."""
    return str(page.relative_to(ROOT))


def text_of(source: str) -> str:
    """Read a file of the repository, or the section of it that is named behind a colon.

    Raises:
        FileNotFoundError: There is no such file.
        LookupError: The file has no such section.
    """
    path, _, section = source.partition(":")
    text = (ROOT / path).read_text()
    if section:
        found = re.search(rf"^ *# \[start:{section}\]\n(.*?)^ *# \[end:{section}\]$", text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise LookupError(
                f"{path} has no section {section}: mark it by `# [start:{section}]` and `# [end:{section}]`"
            )
        text = found[1]
    return dedent(_MARK.sub("", text)).strip() + "\n"


def renew(page: Path) -> None:
    """Write the blocks of a page that are copies anew."""

    def renewed(block: re.Match[str]) -> str:
        source, language, _ = block.groups()
        if source is None:
            return block[0]
        return f"<!-- from: {source} -->\n```{language}\n{text_of(source)}```"

    page.write_text(_BLOCK.sub(renewed, page.read_text()))


if __name__ == "__main__":
    for each in PAGES:
        renew(each)
