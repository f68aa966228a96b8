"""`ppojob`, also the kubectl plugin `kubectl-ppojob`: one program, its heavy parts loaded late."""

import importlib
from typing import Final

import click

COMMANDS: Final = {
    "run": ("ppojob_cli.run", "run"),
    "validate": ("ppojob_cli.validate", "validate"),
    "plan": ("ppojob_cli.plan", "plan"),
    "data": ("ppojob_cli.data", "data"),
    "model": ("ppojob_cli.model", "model"),
    "export": ("ppojob_cli.export", "export"),
    "status": ("ppojob_cli.cluster.status", "status"),
    "logs": ("ppojob_cli.cluster.logs", "logs"),
    "explain": ("ppojob_cli.cluster.explain", "explain"),
    "suspend": ("ppojob_cli.cluster.lifecycle", "suspend"),
    "resume": ("ppojob_cli.cluster.lifecycle", "resume"),
    "metrics": ("ppojob_cli.cluster.metrics", "metrics"),
}


class LateGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ppojob", prog_name="ppojob")
def main() -> None:
    """Reinforcement-learning post-training of language models, on Kubernetes or on this machine."""


def plugin() -> None:
    """The same program as kubectl calls it."""
    main(prog_name="kubectl ppojob")
