"""The house keeps its shape: arrows, the public names, and imports without side effects."""

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import xdb_sdk

ROOT = Path(__file__).parents[2]
PUBLIC_NAMES = Path(__file__).with_name("public_names.txt")
WATCHED_IMPORT = ROOT / "tests/support/watched_import.py"


def test_imports_follow_the_arrows_of_the_layout() -> None:
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    options = ["--no-cache", "--no-logo"]

    # In a process of its own: it sets up logging, which silences the loggers of other tests.
    linted = subprocess.run(
        [sys.executable, "-c", linter, *options], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_sdk_exports_exactly_the_pinned_names() -> None:
    pinned = PUBLIC_NAMES.read_text().split()

    assert list(xdb_sdk.__all__) == pinned, f"if the change is meant, change {PUBLIC_NAMES.name} with it"


def test_every_exported_name_exists() -> None:
    missing = [name for name in xdb_sdk.__all__ if not hasattr(xdb_sdk, name)]

    assert missing == []


@pytest.mark.parametrize("package", ["xdb_sdk", "server_stub"])
def test_importing_a_package_touches_nothing(package: str) -> None:
    watched = subprocess.run(
        [sys.executable, WATCHED_IMPORT, package], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert (watched.returncode, watched.stdout, watched.stderr) == (0, "", "")


@pytest.mark.parametrize("package", ["xdb_sdk", "server_stub"])
def test_package_ships_its_types(package: str) -> None:
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]

    assert files(package).joinpath("py.typed").is_file()
    assert "py.typed" in package_data[package]
