"""Options that several commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)
MANIFEST: Final = click.Path(path_type=Path, allow_dash=True)


def set_option(command: Command) -> Command:
    """Add the option `--set` to a command that reads manifests."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="PATH=VALUE",
        help="Set a field of the manifest, such as spec.seed=1; VALUE is YAML. Repeatable.",
    )(command)
