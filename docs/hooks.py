"""Writes into the pages what the code knows better: settings, the help of the command line, the OpenAPI documents.

Takes out what is for those who read the code: the sources of rules in docstrings name documents of the design.
"""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from server_stub.cli import main
from server_stub.config import SETTINGS

HELP_WIDTH = 100
OPENAPI_FOLDER = "../../server_stub/api/"
OPENAPI_DOCUMENTS = ("openapi-service.json", "openapi-worker.json")
_SOURCE = re.compile(r"\s*(?:Source: semantics \d(?:[^<.]|\.\d)*\.?|\(semantics \d[^)<]*\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the OpenAPI documents to the site."""
    for name in OPENAPI_DOCUMENTS:
        content = resources.files("server_stub.api").joinpath(name).read_text()
        files.append(File.generated(config, f"reference/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace each line `<!-- generated: name -->` by what the generator of that name writes.

    Links to the OpenAPI documents lead to their files in the repository, and in the site to the copies beside the page.
    """
    linked = markdown.replace(f"({OPENAPI_FOLDER}", "(")
    return re.sub(r"^<!-- generated: (\w+) -->$", lambda found: GENERATORS[found[1]](), linked, flags=re.MULTILINE)


def on_page_content(content: str, page: Page, **_: object) -> str:
    """Take out the sources of rules."""
    without_sources = _SOURCE.sub("", content).replace("<p></p>\n", "")
    if left := re.search(r"semantics \d.{0,40}", without_sources):
        raise PluginError(
            f"{page.file.src_uri} names a section of the design: {left[0]!r}; write `Source: semantics N.`"
        )
    return without_sources


def settings_table() -> str:
    """Write every setting of the server as a row."""
    rows = ["| setting | flag | variable | default | |", "| --- | --- | --- | --- | --- |"]
    for setting in SETTINGS.values():
        default = setting.show(setting.default)
        names = f"`{setting.name}` | `{setting.flag}` | `{setting.variable}`"
        rows.append(f"| {names} | `{default}` | {html.escape(setting.purpose)} |")
    return "\n".join(rows)


def command_help() -> str:
    """Write what `--help` says, for each command."""
    sections = (f"## `{name}`\n\n```text\n{text.rstrip()}\n```" for name, text in help_texts())
    return "\n\n".join(sections)


def help_texts() -> Iterator[tuple[str, str]]:
    """Give the name and the help of each command and group."""
    yield from _help_of(main, "xdb", None)


def _help_of(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = command.make_context(name, [], parent, resilient_parsing=True, terminal_width=HELP_WIDTH)
    yield context.command_path, command.get_help(context)
    if not isinstance(command, click.Group):
        return
    for child_name in command.list_commands(context):
        yield from _help_of(command.commands[child_name], child_name, context)


GENERATORS: Mapping[str, Callable[[], str]] = {"settings": settings_table, "command_help": command_help}
