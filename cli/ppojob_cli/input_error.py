"""Input errors: how all commands report them and exit."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ppojob_api import contract
from ppojob_api.problem import printable


class InputError(click.ClickException):
    """Lines for the person, `where: got: why; what is allowed` each; nothing was changed."""

    exit_code = contract.EXIT_INVALID

    def show(self, file: object = None) -> None:
        """Write the lines, and nothing of click's own beside them."""
        for line in self.message.splitlines():
            click.echo(printable(line), err=True)


@contextmanager
def told() -> Iterator[None]:
    """Tell what the trainer's own code finds wrong with the input."""
    from ppojob_trainer.errors import PPOJobError

    try:
        yield
    except PPOJobError as problem:
        raise InputError(str(problem)) from None
