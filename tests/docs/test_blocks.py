"""Every code block of the documentation is a copy out of a tested example, or is run or parsed here."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from server_stub.cli import main
from server_stub.cli._client import CLIENT_VARIABLES
from server_stub.config import SETTINGS
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks_of, name_of, renew, text_of

REGISTER_ALL = """
import xdb_sdk
for each in list(globals().values()):
    if isinstance(each, type) and issubclass(each, xdb_sdk.ObjectProcess) and each.__module__ == "__main__":
        xdb_sdk.Registry().add_process(each)
"""
"""Finds mistakes in the definitions of a page."""


def own_python_of(page: Path) -> list[Block]:
    """The Python of a page that is no copy."""
    return [block for block in blocks_of(page) if block.language == "python" and block.source is None]


@pytest.mark.parametrize("page", [page for page in PAGES if own_python_of(page)], ids=name_of)
def test_python_of_page_runs_without_warnings(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n\n".join([*(block.text for block in own_python_of(page)), REGISTER_ALL]))

    finished = subprocess.run(
        [sys.executable, "-W", "error", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert (finished.returncode, finished.stderr) == (0, "")


def test_copied_blocks_say_what_their_examples_say() -> None:
    stale = [
        f"{name_of(block.page)}: {block.source}; run python -m tests.docs.pages"
        for block in all_blocks()
        if block.source is not None and block.text != text_of(block.source)
    ]

    assert stale == []


def test_blocks_that_cannot_be_run_are_copies_from_the_examples() -> None:
    strangers = [
        f"{name_of(block.page)}: {block.text[:60]}"
        for block in all_blocks()
        if block.language not in ("python", "console") and not str(block.source).startswith("examples/")
    ]

    assert strangers == []


@pytest.mark.parametrize("source", ["examples/nothing.py", "examples/user_signup/process.py:nothing"])
def test_copy_of_what_does_not_exist_is_an_error(source: str) -> None:
    with pytest.raises((FileNotFoundError, LookupError), match="nothing"):
        text_of(source)


def test_renewed_page_has_the_text_of_the_example_in_place_of_an_old_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    source = "examples/user_signup/worker.py:worker"
    page.write_text(f"Before.\n\n<!-- from: {source} -->\n```python\nold\n```\n\n```python\nown = 1\n```\n")

    renew(page)

    assert page.read_text() == (
        f"Before.\n\n<!-- from: {source} -->\n```python\n{text_of(source)}```\n\n```python\nown = 1\n```\n"
    )


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "console" for b in blocks_of(p))], ids=name_of)
def test_commands_of_page_are_understood(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "console":
            for line in block.text.splitlines():
                check_command(line)


def check_command(line: str) -> None:
    """Refuse a command that does not exist, or does not take these arguments."""
    words = shlex.split(line)
    while "=" in words[0]:
        variable = words.pop(0).partition("=")[0]
        known = {each.variable for each in SETTINGS.values()} | CLIENT_VARIABLES
        assert variable.startswith("OTEL_") or variable in known, line
    if words[0] == "opentelemetry-instrument":
        words.pop(0)
    match Path(words[0]).name, words[1:]:
        case "make", [target]:
            assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        case "python", ["-m", "pip", "install", "/path/to/xdb[postgres]" | "/path/to/xdb[mysql]"]:
            pass
        case "python", ["-m", "pip", "install", *options, "/path/to/xdb"]:
            assert " ".join(options) in (ROOT / "Makefile").read_text(), line
        case "python", [file]:
            assert len([*(ROOT / "examples").rglob(file)]) == 1, line
        case "python", ["-m", module, *_]:
            assert importlib.util.find_spec(module), line
        case "sudo", ["-u", "postgres", "createuser" | "createdb" as tool, *arguments]:
            check_database_tool(tool, arguments)
        case "uvicorn", [_, "--port", port]:
            assert port.isdecimal(), line
        case "xdb", arguments:
            check_xdb(arguments)
        case _:
            pytest.fail(f"{line}: this kind of command is not checked")


def check_database_tool(tool: str, arguments: list[str]) -> None:
    """Refuse what is not said of PostgreSQL's own tools, which are not installed everywhere."""
    known = {"createuser": ["--pwprompt", "xdb"], "createdb": ["--owner", "xdb", "business"]}
    assert arguments == known[tool]


def check_xdb(arguments: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    command.make_context(command.name, arguments)
