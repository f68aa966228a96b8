"""Shell of a row: commands in a workspace of files, whose state a last command tests."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.sandbox.executor import Runner, Sandbox, SandboxRefused
from ppojob_trainer.sandbox.levels import Isolation
from ppojob_trainer.sandbox.process import Limits, Outcome
from ppojob_trainer.sandbox.workspace import Workspace, isolation_of_workspaces
from ppojob_trainer.tools.built_in.tool import STOPPED, BuiltIn, parameters


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`config` of the tool."""

    folder: str | None = None  # copied into each workspace, or the parent of rows' folders
    workspace_mib: int = 256  # limit of its files
    readable: list[str] = []  # more files and folders that commands may read


class Bash:
    """The environment of a row.

    Args:
        files: texts by their paths in the workspace.
        folder: what is copied into the workspace: a path in `config.folder`.
        setup: a command that is run first.
        test: the command that decides the score: 1 if its exit status is 0, else 0.
        test_files: files that are written before it, which earlier commands cannot see.
    """

    def __init__(
        self,
        isolation: Isolation,
        limits: Limits,
        settings: Settings,
        *,
        row: str,
        files: dict[str, str] | None = None,
        folder: str = "",
        setup: str = "",
        test: str = "",
        test_files: dict[str, str] | None = None,
    ) -> None:
        self._test, self._test_files = test, test_files or {}
        self._workspace = Workspace(
            isolation,
            limits,
            row,
            most_bytes=settings.workspace_mib << 20,
            readable=settings.readable,
        )
        try:
            if settings.folder is not None:
                source = Path(settings.folder, folder)
                shutil.copytree(source, self._workspace.home, symlinks=True, dirs_exist_ok=True)
            if files or setup:
                made = self._workspace.run(setup or ":", files)
                if not made.is_well:
                    raise RuntimeError(f"setup of the workspace: {_text(made)[-500:]}")
        except BaseException:
            self.close()
            raise

    def bash(self, command: str) -> str:
        """Run a command; return what it writes, and its exit status unless that is 0."""
        return _text(self._workspace.run(command))

    def score(self) -> float:
        """Run the test of the row."""
        return float(bool(self._test) and self._workspace.run(self._test, self._test_files).is_well)

    def close(self) -> None:
        """Delete the workspace."""
        self._workspace.close()


def _text(outcome: Outcome) -> str:
    text = outcome.stdout.decode("utf-8", errors="backslashreplace").rstrip("\n")
    status = f"[exit status {outcome.status}]" if outcome.status else ""
    end = STOPPED.get(outcome.stopped, status)
    return "\n".join(filter(None, (text, end)))


def _check(config: Mapping[str, Any]) -> None:
    """Check the settings; raises `ConfigError`."""
    try:
        settings = msgspec.convert(config, Settings)
    except msgspec.ValidationError as wrong:
        allowed = f"any of {', '.join(Settings.__struct_fields__)}"
        raise ConfigError(f"config: got {dict(config)}: {wrong}; {allowed}") from None
    for path in filter(None, (settings.folder, *settings.readable)):
        if not Path(path).exists():
            raise ConfigError(f"config: got {path}: there is no such folder; one in the tools pods")


def _environment(sandbox: Runner, config: Mapping[str, Json]) -> Callable[..., Bash]:
    if not isinstance(sandbox, Sandbox):
        raise SandboxRefused("spec.sandbox.url: the service has no workspaces; remove url")
    settings = msgspec.convert(config, Settings)
    return partial(Bash, isolation_of_workspaces(sandbox), sandbox.limits, settings)


TOOL: Final = BuiltIn(
    Bash.bash,
    "Runs a command of bash in the working folder and gives what it prints.",
    parameters(command="The command. Files that it leaves are there for the next one."),
    runs_code=True,
    opens=_check,
    environment=_environment,
)
