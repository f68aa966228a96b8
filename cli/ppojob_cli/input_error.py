"""Input errors: how all commands report them and exit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ppojob_api import contract
from ppojob_api.problem import printable


class InputError(click.ClickException):
    """Invalid input; its message has one line `where: got: why; what is allowed` per problem."""

    exit_code = contract.EXIT_INVALID

    def show(self, file: object = None) -> None:
        """Print only these lines, without click's usage text."""
        for line in self.message.splitlines():
            click.echo(printable(line), err=True)


@contextmanager
def output_errors(output: Path, allowed: str = "a folder that can be written") -> Iterator[None]:
    """Convert system errors with what `--output` names."""
    try:
        yield
    except OSError as error:
        part = f"{error.filename}: " if error.filename not in {None, str(output)} else ""
        why = error.strerror or error
        raise InputError(f"--output: got {output}: {part}{why}; {allowed}") from None
