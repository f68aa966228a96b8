"""`ppojob`, also the kubectl plugin `kubectl-ppojob`: one program, whose commands load lazily."""

import importlib
from typing import Any, Final

import click

from ppojob_api import contract
from ppojob_api.problem import shown
from ppojob_cli.cluster.options import cluster_options
from ppojob_cli.input_error import InputError

COMMANDS: Final = {
    "run": ("ppojob_cli.run", "run"),
    "validate": ("ppojob_cli.validate", "validate"),
    "plan": ("ppojob_cli.plan", "plan"),
    "fields": ("ppojob_cli.fields", "fields"),
    "data": ("ppojob_cli.data", "data"),
    "model": ("ppojob_cli.model", "model"),
    "tools": ("ppojob_cli.tools", "tools"),
    "from-verl": ("ppojob_cli.from_verl", "from_verl"),
    "generate": ("ppojob_cli.generate", "generate"),
    "evaluate": ("ppojob_cli.evaluate", "evaluate"),
    "page": ("ppojob_cli.page", "page"),
    "export": ("ppojob_cli.export", "export"),
    "index": ("ppojob_cli.search", "index"),
    "retrieve": ("ppojob_cli.search", "retrieve"),
    "status": ("ppojob_cli.cluster.lifecycle", "status"),
    "logs": ("ppojob_cli.cluster.logs", "logs"),
    "explain": ("ppojob_cli.cluster.explain", "explain"),
    "suspend": ("ppojob_cli.cluster.lifecycle", "suspend"),
    "resume": ("ppojob_cli.cluster.lifecycle", "resume"),
    "metrics": ("ppojob_cli.cluster.metrics", "metrics"),
}

HELP: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "show_default": True}
SECTIONS: Final = (
    ("Commands that run on this machine", False),
    ("Commands about a job on a cluster, also as kubectl ppojob", True),
)
"""Headings of the help, and whether their commands use a cluster."""


def uses_cluster(command: str) -> bool:
    """Return whether a command is about a job on a cluster."""
    return COMMANDS[command][0].startswith("ppojob_cli.cluster.")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return one that reports its missing package."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as problem:
            return _placeholder(cmd_name, problem)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            why, known = "there is no such command", ", ".join(COMMANDS)
            raise click.UsageError(f"COMMAND: got {shown(args[0])}: {why}; one of {known}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List local commands and commands about a cluster in separate sections."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        for title, is_about_cluster in SECTIONS:
            commands = [
                (word, command.get_short_help_str(width))
                for word in self.list_commands(ctx)
                if uses_cluster(word) == is_about_cluster
                and (command := self.get_command(ctx, word)) is not None
            ]
            with formatter.section(title):
                formatter.write_dl(commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; report missing packages, and end quietly on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as problem:
            raise _not_installed(str(ctx.invoked_subcommand), problem) from None
        except KeyboardInterrupt:
            raise SystemExit(contract.EXIT_INTERRUPTED) from None


def _placeholder(name: str, problem: ModuleNotFoundError) -> click.Command:
    def refuse() -> None:
        raise _not_installed(name, problem)

    return click.Command(
        name,
        callback=refuse,
        help=f"Needs the package {problem.name}.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


def _not_installed(command: str, problem: ModuleNotFoundError) -> InputError:
    """Make the error for a missing package, except for our own packages, which is a bug."""
    package = (problem.name or "").partition(".")[0]
    if not package or package.startswith("ppojob"):
        raise problem
    remedy = "pip install '.[kubectl]'" if uses_cluster(command) else "make setup"
    if command == "validate":
        remedy = f"--offline to judge the manifest alone, or {remedy}"
    return InputError(
        f"{package}: got nothing: the command {command} needs it; {remedy} in a clone of PPOJob"
    )


@click.group(cls=LazyGroup, context_settings=HELP)
@click.version_option(package_name="ppojob", prog_name="ppojob")
@cluster_options
def main(**of_cluster: str | None) -> None:
    """Reinforcement-learning post-training of language models, on Kubernetes or on this machine.

    --namespace, --context and --kubeconfig are for the commands about a job on a cluster, and may
    also follow them.
    """
    context = click.get_current_context()
    given = {name: value for name, value in of_cluster.items() if value is not None}
    command = context.invoked_subcommand or ""
    if given and not uses_cluster(command):
        option, value = next(iter(given.items()))
        why = f"{command} uses no cluster"
        raise click.UsageError(f"--{option}: got {shown(value)}: {why}; {command} without it")
    context.default_map = {command: given}


def plugin() -> None:
    """Run the program as a kubectl plugin."""
    main(prog_name="kubectl ppojob")
