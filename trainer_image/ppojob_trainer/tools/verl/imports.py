"""Import hook for verl's names in users' tool files, in pods without verl."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Verl(MetaPathFinder, Loader):
    """Finds modules that no other finder has; of an installed verl `verl.interactions`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ("verl", "omegaconf") or fullname not in _modules():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_modules()[module.__name__])
        for name in _modules():
            if name.rpartition(".")[0] == module.__name__:
                importlib.import_module(name)  # importing a package imports all its modules


def provide_verl() -> None:
    """Install the import hook. Idempotent."""
    if not any(isinstance(one, _Verl) for one in sys.meta_path):
        sys.meta_path.append(_Verl())


def _modules() -> dict[str, dict[str, object]]:
    from ppojob_trainer.tools.verl.tools import MODULES  # late: pydantic imports slowly

    return MODULES
