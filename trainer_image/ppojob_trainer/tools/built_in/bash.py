"""Shell of a row: commands in a workspace of files, whose state a last command tests."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import encodable
from ppojob_trainer.sandbox.executor import Runner, Sandbox, SandboxRefused
from ppojob_trainer.sandbox.process import Outcome
from ppojob_trainer.sandbox.workspace import Workspace, isolation_of_workspaces
from ppojob_trainer.tools.built_in.tool import STOPPED, BuiltIn, parameters

_COMMAND_BYTES: Final = 100_000


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`config` of the tool."""

    folder: str | None = None  # copied into each workspace, or the parent of rows' folders
    workspace_mib: Annotated[int, msgspec.Meta(ge=1)] = 256  # limit of its files
    readable: list[str] = []  # more files and folders that commands may read


class Shell(Protocol):
    """Runs the commands of a row, one at a time; see `Workspace` and `ContainerShell`."""

    def run(self, command: str, files: Mapping[str, str] | None = None) -> Outcome: ...

    def close(self) -> None: ...


class Bash:
    """The environment of a row.

    Args:
        open_shell: takes the name of the row, and what the row says of the place of its files.
        files: texts by their paths in the working folder.
        setup: a command that is run first.
        test: the command that decides the score: 1 if its exit status is 0, else 0.
        test_output: what it must also write; None: anything.
        test_files: files that are written before it, which earlier commands cannot see.
    """

    def __init__(
        self,
        open_shell: Callable[..., Shell],
        *,
        row: str,
        files: dict[str, str] | None = None,
        setup: str = "",
        test: str = "",
        test_output: str | None = None,
        test_files: dict[str, str] | None = None,
        **place: str,
    ) -> None:
        self._test, self._test_output, self._test_files = test, test_output, test_files or {}
        self._shell = open_shell(row, **place)
        try:
            if files or setup:
                made = self._shell.run(setup or ":", files)
                if not made.is_well:
                    raise RuntimeError(f"setup of the workspace: {_text(made)[-500:]}")
        except BaseException:
            self.close()
            raise

    def bash(self, command: str) -> str:
        """Run a command; return what it writes, and its exit status unless that is 0."""
        if len(command.encode(errors="replace")) > _COMMAND_BYTES or "\0" in command:
            return f"Error: a command has at most {_COMMAND_BYTES} bytes, and no NUL."
        return _text(self._shell.run(encodable(command)))

    def score(self) -> float:
        if not self._test:
            return 0.0
        outcome = self._shell.run(self._test, self._test_files)
        wanted = self._test_output
        is_right = (
            wanted is None or outcome.stdout.decode(errors="replace").strip() == wanted.strip()
        )
        return float(outcome.is_well and is_right)

    def close(self) -> None:
        self._shell.close()


def _part_of(top: Path, path: str) -> Path:
    """Return a folder in another one; raises ValueError if it is elsewhere."""
    found = (top / path).resolve()
    if not found.is_dir() or not found.is_relative_to(top.resolve()):
        raise ValueError(f"folder: got {path}: there is no such folder in {top}")
    return found


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
    given = settings.readable if settings.folder is None else [settings.folder, *settings.readable]
    for path in given:
        if not (Path(path).is_absolute() and Path(path).exists()):
            why = "there is no such path in the tools pods; an absolute path"
            raise ConfigError(f"config: got {shown(path)}: {why}")


def _environment(sandbox: Runner, config: Mapping[str, Json]) -> Callable[..., Bash]:
    if not isinstance(sandbox, Sandbox):
        raise SandboxRefused("spec.sandbox.url: the service has no workspaces; remove url")
    settings, limits = msgspec.convert(config, Settings), sandbox.limits
    isolation = isolation_of_workspaces(sandbox)

    def open_workspace(row: str, folder: str = "") -> Workspace:
        most_bytes, readable = settings.workspace_mib << 20, settings.readable
        workspace = Workspace(isolation, limits, row, most_bytes=most_bytes, readable=readable)
        try:
            if settings.folder is not None:
                workspace.add(_part_of(Path(settings.folder), folder))
            elif folder:
                raise ValueError(f"folder: got {folder}: the tool has no config.folder")
        except BaseException:
            workspace.close()
            raise
        return workspace

    return partial(Bash, open_workspace)


TOOL: Final = BuiltIn(
    Bash.bash,
    "Runs a command of bash in the working folder and gives what it prints.",
    parameters(command="The command. Files that it leaves are there for the next one."),
    runs_code=True,
    opens=_check,
    environment=_environment,
)
