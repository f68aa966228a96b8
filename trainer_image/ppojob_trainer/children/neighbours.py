"""Users' files import what lies beside them, and never what lies beside another one."""

import contextlib
import sys
from pathlib import Path
from types import ModuleType


class Neighbours:
    """The folder that is first on the module path, with the modules that came from it.

    Two folders may hold modules of one name: each sees its own, when it is loaded as in a call that
    imports something late. Nothing moves while calls stay in one folder.
    """

    def __init__(self) -> None:
        self._others = frozenset(sys.modules)
        self._folder = ""
        self._kept: dict[str, dict[str, ModuleType]] = {}

    def enter(self, folder: str) -> None:
        """Make an absolute folder the first to import from; an empty one leaves all as it is."""
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
    """The folder that a module or package lies in."""
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return str(Path(place).parent) if isinstance(place, str) else None
