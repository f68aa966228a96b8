"""User code loader: imports users' Python code in a child; loaders raise `BadInput`."""

import contextlib
import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ppojob_api.problem import printable
from ppojob_trainer.errors import BadInput

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")

_SHOWN_FRAMES = 5
_LINE_CHARACTERS = 600
_STANDARD_LIBRARY = Path(traceback.__file__).parent
_EVENT_LOOP = _STANDARD_LIBRARY / "asyncio"


def load_module(path: str, module_name: str, *, pod: str) -> ModuleType:
    """Import a Python file as a module of this name; `pod` is for messages."""
    file = Path(path)
    if not file.is_file():
        raise BadInput(path, "no such file", "a Python file")
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise BadInput(path, "no Python file", "a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the file is the user's: it may even call sys.exit
        raise _import_problem(path, error, pod) from None
    return module


def load_function(path: str, name: str, module_name: str, allowed: str) -> Callable[..., Any]:
    """Import a file in the controller pod and return its function of this name."""
    ImportFolder().enter(str(Path(path).resolve().parent))
    found = vars(load_module(path, module_name, pod="controller"))
    if name not in found:
        own = [
            key
            for key, value in found.items()
            if callable(value) and getattr(value, "__module__", "") == module_name
        ]
        why = f"the file has no such function; it has {', '.join(own) or 'none'}"
        raise BadInput(name, why, allowed)
    function: object = found[name]
    if not callable(function):
        raise BadInput(f"{name} = {type(function).__name__}", "not callable", "a function")
    return function


def load_packaged(package: str, *, pod: str) -> ModuleType:
    """Import a module of an installed package, ``rewards`` or ``our_package.rewards``."""
    try:
        return importlib.import_module(package)
    except BaseException as error:  # as in a file
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{package}.".startswith(f"{missing}."):
            raise _import_problem(package, error, pod) from None
        raise BadInput(
            package,
            "no such module is installed",
            f"a module of a package in the {pod} pod's image, such as our_package.rewards",
        ) from None


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in the event loop of all calls, so that they can keep connections open."""
    return _runner().run(coroutine)


@functools.cache
def _runner() -> "asyncio.Runner":
    import asyncio  # late: it would double the start time, and few functions are coroutines

    return asyncio.Runner()


def raised(error: BaseException, caller: str) -> tuple[str, str]:
    """Return an exception of users' code as two lines: its text, and its place.

    Frames of `caller`, the file of ours that called the code, are dropped.
    """
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # an exception whose own text raises
        text = type(error).__name__
    frames = " < ".join(reversed(_user_frames(error, caller)))
    where = f"it raised at {frames}" if frames else "the call raised it"
    return printable(text, _LINE_CHARACTERS), printable(where, _LINE_CHARACTERS)


def _user_frames(error: BaseException, caller: str) -> list[str]:
    """Return the last five frames of an exception as ``file:line name``, without the caller's.

    If these are of libraries, the first is the last one that is not, if there is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if frame.filename not in (caller, __file__)]
    own = [frame for frame in others if Path(frame.filename).parent != _EVENT_LOOP]
    last, of_user = own[-_SHOWN_FRAMES:], [frame for frame in own if not _is_library(frame)]
    if of_user and of_user[-1] not in last:
        last = [of_user[-1], *last[-3:]]  # short: the line is cut
    return [_shown(frame) for frame in last]


def _is_library(frame: traceback.FrameSummary) -> bool:
    file = Path(frame.filename)
    return file.is_relative_to(_STANDARD_LIBRARY) or "site-packages" in file.parts


def _shown(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} {frame.name}"


def _last_place(path: str, error: BaseException) -> str:
    """Return the last frame of an exception in the file, or in a file of the same folder."""
    file = Path(path)
    folders = {file.absolute().parent, file.resolve().parent}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent in folders]
    return _shown(own[-1]) if own else path


def _import_problem(path: str, error: BaseException, pod: str) -> BadInput:
    if isinstance(error, SyntaxError):
        return BadInput(f"{path}:{error.lineno}", f"not Python: {error.msg}", "valid Python")
    if isinstance(error, ModuleNotFoundError):
        return BadInput(
            path,
            f"it imports {error.name}, which is not installed",
            f"a package of the {pod} pod's image, or a file in the same folder",
        )
    return BadInput(
        _last_place(path, error),
        f"importing it raised {type(error).__name__}: {printable(str(error), 200)}",
        "a file that can be imported",
    )


class ImportFolder:
    """The first folder on the module path, and the modules that were imported from it.

    Users' files import other files of their folder. Two folders may have modules of the same name:
    each file gets those of its own folder, at its own import and in later calls. Nothing changes
    between calls in one folder.
    """

    def __init__(self) -> None:
        self._others = frozenset(sys.modules)
        self._folder = ""
        self._kept: dict[str, dict[str, ModuleType]] = {}

    def enter(self, folder: str) -> None:
        """Put an absolute folder first on the module path; an empty name changes nothing."""
        if folder in ("", self._folder):
            return
        if self._folder:
            self._leave()
        self._folder = folder
        sys.path.insert(0, folder)
        sys.modules.update(self._kept.get(folder, {}))

    def _leave(self) -> None:
        with contextlib.suppress(ValueError):  # users' code may change the path too
            sys.path.remove(self._folder)
        found = list(sys.modules.items())  # threads of users' code may import meanwhile
        kept = {name: module for name, module in found if self._is_here(name)}
        for name in kept:
            del sys.modules[name]
        self._kept[self._folder] = kept

    def _is_here(self, name: str) -> bool:
        package = name.partition(".")[0]
        if package in self._others:
            return False
        return _folder_of(sys.modules.get(package)) == self._folder


def _folder_of(module: ModuleType | None) -> str | None:
    """Return the folder that contains a module or package."""
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return str(Path(place).parent) if isinstance(place, str) else None
