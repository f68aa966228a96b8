"""Users' Python files: imported in a child, with what is wrong of them in words."""

import asyncio
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ppojob_api.problem import printable

_SHOWN_FRAMES = 5
_LINE_CHARACTERS = 600
_EVENT_LOOP = Path(asyncio.__file__).parent


class UnusableFile(Exception):  # noqa: N818  the file is unusable
    """A file cannot be imported.

    Attributes:
        got: what is there.
        why: what is wrong with it.
        allowed: what to write instead.
    """

    def __init__(self, got: str, why: str, allowed: str) -> None:
        self.got = got
        self.why = why
        self.allowed = allowed
        super().__init__(f"got {got}: {why}; {allowed}")


def load_module(path: str, module_name: str, *, pod: str) -> ModuleType:
    """Import a Python file.

    Args:
        path: the file.
        module_name: of the module that it becomes.
        pod: where it runs, for messages.

    Raises:
        UnusableFile: it cannot be imported.
    """
    file = Path(path)
    if not file.is_file():
        raise UnusableFile(path, "no such file", "a Python file")
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UnusableFile(path, "no Python file", "a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the file is the user's: it may even call sys.exit
        raise _import_problem(path, error, pod) from None
    return module


def raised(error: BaseException) -> tuple[str, str]:
    """An exception of users' code in two lines: what it says, and where it came from."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # an exception whose own text raises
        text = type(error).__name__
    frames = " < ".join(reversed(user_frames(error))) or "no frame"
    return (
        printable(text, _LINE_CHARACTERS),
        printable(f"it raised at {frames}", _LINE_CHARACTERS),
    )


def user_frames(error: BaseException) -> list[str]:
    """The last five frames of an exception, as ``file:line name``, those of the caller left out."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if Path(frame.filename).parent != _EVENT_LOOP]
    return [_shown(frame) for frame in own[-_SHOWN_FRAMES:]]


def _shown(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} {frame.name}"


def _last_place(path: str, error: BaseException) -> str:
    """The last line of the file, or of one beside it, that an exception came through."""
    file = Path(path)
    folders = {file.absolute().parent, file.resolve().parent}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent in folders]
    return _shown(own[-1]) if own else path


def _import_problem(path: str, error: BaseException, pod: str) -> UnusableFile:
    if isinstance(error, SyntaxError):
        return UnusableFile(f"{path}:{error.lineno}", f"not Python: {error.msg}", "valid Python")
    if isinstance(error, ModuleNotFoundError):
        return UnusableFile(
            path,
            f"it imports {error.name}, which is not installed",
            f"a package of the {pod} pod's image, or a file beside this one",
        )
    return UnusableFile(
        _last_place(path, error),
        f"importing it raised {type(error).__name__}: {printable(str(error), 200)}",
        "a file that can be imported",
    )
