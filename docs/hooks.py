"""Writes into the pages what the code knows better: settings, the help of the command line, the OpenAPI documents."""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from server_stub.cli import main
from server_stub.config import SETTINGS

OPENAPI_DOCUMENTS = ("openapi-service.json", "openapi-worker.json")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the OpenAPI documents to the site."""
    for name in OPENAPI_DOCUMENTS:
        content = resources.files("server_stub.api").joinpath(name).read_text()
        files.append(File.generated(config, f"reference/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace each line `<!-- generated: name -->` by what the generator of that name writes."""
    return re.sub(r"^<!-- generated: (\w+) -->$", lambda found: GENERATORS[found[1]](), markdown, flags=re.MULTILINE)


def settings_table() -> str:
    """Write every setting of the server as a row."""
    rows = ["| setting | flag | variable | default | |", "| --- | --- | --- | --- | --- |"]
    for setting in SETTINGS.values():
        default = setting.show(setting.default)
        rows.append(f"| `{setting.name}` | `{setting.flag}` | `{setting.variable}` | `{default}` | {setting.purpose} |")
    return "\n".join(rows)


def command_help() -> str:
    """Write what `--help` says, for each command."""
    sections = (f"## `{name}`\n\n```text\n{text.rstrip()}\n```" for name, text in help_texts())
    return "\n\n".join(sections)


def help_texts() -> Iterator[tuple[str, str]]:
    """Give the name and the help of each command and group."""
    yield from _help_of(main, click.Context(main, info_name="xdb", max_content_width=100))


def _help_of(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        child = command.commands[name]
        yield from _help_of(child, click.Context(child, info_name=name, parent=context))


GENERATORS: Mapping[str, Callable[[], str]] = {"settings": settings_table, "command_help": command_help}
