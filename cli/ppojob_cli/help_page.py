"""docs/command-line.md, made of what `--help` says: `python -m ppojob_cli.help_page`."""

import sys
from collections.abc import Iterator

import click

from ppojob_cli.main import COMMANDS, asks_cluster, main

WIDTH = 98

_HEAD = """\
# The command line

This page is generated from `--help` by `python -m ppojob_cli.help_page > docs/command-line.md`.

`ppojob` runs jobs on this machine. The commands from `status` on are about a job on a cluster;
kubectl finds them as `kubectl ppojob` if the program `kubectl-ppojob` is on `PATH`: `make setup`
puts it into `.venv/bin`, and in a clone `pip install '.[kubectl]'` installs it without the trainer.
They use kubectl's own configuration (`KUBECONFIG`, `--kubeconfig`, `--context`, `--namespace`), and
report an error in one line: `where: got: why; what is allowed`.

| exit status | meaning |
| --- | --- |
| 0 | done |
| 2 | the input is wrong, no such job, or a cluster that cannot be used: nothing was changed |
| 3 | a job failed, a reward did (`evaluate`), or something was left out (`from-verl`) |
| 130 | interrupted by Ctrl-C |

Permissions in the job's namespace that `kubectl ppojob` uses:

| command | permissions |
| --- | --- |
| all | `get`, `list` of `ppojobs` |
| `logs` | `list` of `pods`, `get` of `pods/log` |
| `explain` | `list` of `pods` and `events`, `get` of `pods/proxy`, `nodes` and `leases` |
| `suspend`, `resume` | `patch` of `ppojobs` |
| `metrics` | `get` of `pods/proxy` |

`explain` works without missing permissions and says what it could not read; the Lease is
in the operator's namespace.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections(main, "ppojob")])


def _sections(command: click.Command, name: str) -> Iterator[str]:
    names = main.context_settings["help_option_names"]
    context = click.Context(command, info_name=name, terminal_width=WIDTH, help_option_names=names)
    yield f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            if found is not None:
                yield from _sections(found, f"{_program(name, word)} {word}")


def _program(name: str, word: str) -> str:
    """What a command is called behind: those about a cluster are kubectl's."""
    return "kubectl ppojob" if word in COMMANDS and asks_cluster(word) else name


if __name__ == "__main__":
    sys.stdout.write(page())
