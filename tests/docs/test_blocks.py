"""Every code block of the documentation is part of a tested example, or is run or parsed here."""

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
from server_stub.config import SETTINGS
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks_of, name_of

REGISTER_ALL = """
import xdb_sdk
for each in list(globals().values()):
    if isinstance(each, type) and issubclass(each, xdb_sdk.ObjectProcess) and each.__module__ == "__main__":
        xdb_sdk.Registry().add_process(each)
"""
"""Finds mistakes in the definitions of a page."""


def own_python_of(page: Path) -> list[Block]:
    """The Python of a page that no example holds."""
    return [
        block
        for block in blocks_of(page)
        if block.language == "python" and block.include() is None and not block.is_from_examples()
    ]


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


def test_included_sections_exist_in_the_examples() -> None:
    missing = []
    for block in all_blocks():
        if included := block.include():
            path, section = included
            is_there = path.is_relative_to(ROOT / "examples") and path.is_file()
            if not is_there or (section and f"--8<-- [start:{section}]" not in path.read_text()):
                missing.append(f"{name_of(block.page)}: {path.name}:{section}")

    assert missing == []


def test_blocks_that_cannot_be_run_come_from_the_examples() -> None:
    strangers = [
        f"{name_of(block.page)}: {block.text[:60]}"
        for block in all_blocks()
        if block.language not in ("python", "console") and block.include() is None and not block.is_from_examples()
    ]

    assert strangers == []


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
        assert words.pop(0).partition("=")[0] in {setting.variable for setting in SETTINGS.values()}, line
    match Path(words[0]).name, words[1:]:
        case "make", [target]:
            assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        case "python", ["-m", module, *_]:
            assert importlib.util.find_spec(module), line
        case "uvicorn", [_, "--port", port]:
            assert port.isdecimal(), line
        case "xdb", arguments:
            check_xdb(arguments)
        case _:
            pytest.fail(f"{line}: this kind of command is not checked")


def check_xdb(arguments: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    command.make_context(command.name, arguments)
