"""`ppojob`, also the kubectl plugin `kubectl-ppojob`: one program, whose commands load lazily."""

import importlib
from typing import Any, Final

import click

from ppojob_api import contract
from ppojob_api.problem import shown
from ppojob_cli.cluster.options import cluster_options
from ppojob_cli.input_error import InputError
from ppojob_trainer.errors import PPOJobError

COMMANDS: Final = {
    "run": ("run", "Run a PPOJob manifest on this machine, or resume its run."),
    "validate": ("validate", "Check PPOJob manifests and the files that they name."),
    "plan": ("plan", "Show roles, ranks, memory, objects and every default of FILE."),
    "fields": ("fields", "Print the fields of a job: type, default, meaning, verl's name."),
    "data": ("data", "Make prompts to train on."),
    "model": ("model", "Make a model folder of a hub id, or of the demo's model."),
    "tools": ("tools", "Print spec.agent of tools in Python, YAML or an MCP server."),
    "from-verl": ("from_verl", "Convert a verl script, YAML or KEY=VALUE to a PPOJob."),
    "generate": ("generate", "Generate responses to the held-out prompts of a job."),
    "evaluate": ("evaluate", "Score responses, and print verl's validation numbers of them."),
    "page": ("page", "Write curves and responses of runs to one HTML file."),
    "export": ("export", "Write the policy of a checkpoint in Hugging Face form."),
    "index": ("search", "Build a search index of a corpus."),
    "retrieve": ("search", "Serve an index over HTTP, as Search-R1 does."),
    "status": (
        "cluster.lifecycle",
        "Phase, progress, roles, conditions and last failures of a job.",
    ),
    "logs": ("cluster.logs", "Logs of all pods of a job, merged by time."),
    "explain": (
        "cluster.explain",
        "Show every reason why a job does not continue, and what to do.",
    ),
    "suspend": ("cluster.lifecycle", "Suspend a job after its step, and release its pods."),
    "resume": ("cluster.lifecycle", "Resume a suspended job from its checkpoint, bit for bit."),
    "metrics": ("cluster.metrics", "Metrics of a job's last step, by name, and what they mean."),
}
"""The module of each command, and the first line of its help: to list them loads none of them."""

HELP: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "show_default": True}
SECTIONS: Final = (
    ("Commands that run on this machine", False),
    ("Commands about a job on a cluster, also as kubectl ppojob", True),
)
"""Headings of the help, and whether their commands use a cluster."""


def uses_cluster(command: str) -> bool:
    """Return whether a command is about a job on a cluster."""
    return COMMANDS[command][0].startswith("cluster.")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; an `InputError` names a package that it lacks."""
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"ppojob_cli.{COMMANDS[cmd_name][0]}")
        except ModuleNotFoundError as problem:
            if ctx.resilient_parsing:  # of completion
                return None
            raise _not_installed(cmd_name, problem) from None
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
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
        for title, is_about_cluster in SECTIONS:
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (word, text)
                        for word, (_, text) in COMMANDS.items()
                        if uses_cluster(word) == is_about_cluster
                    ]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; report errors in one line, and end quietly on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as problem:
            raise _not_installed(str(ctx.invoked_subcommand), problem) from None
        except PPOJobError as problem:
            raise InputError(str(problem)) from None
        except KeyboardInterrupt:
            raise SystemExit(contract.EXIT_INTERRUPTED) from None


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
