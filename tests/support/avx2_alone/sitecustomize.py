"""Lets PyTorch and vLLM take the processor for one with AVX2 alone: `make test AVX2=1`.

PyTorch's kernels, oneDNN and MKL have variables for that; what PyTorch tells vLLM has none.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_WIDER = ("_is_avx512", "_is_vnni", "_is_amx")


class _TorchCpu:
    """Finds `torch.cpu` as others do, and takes away what AVX2 does not have."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.cpu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_narrow(module: ModuleType) -> None:
            load(module)
            for function in filter(lambda known: known.startswith(_WIDER), list(vars(module))):
                setattr(module, function, lambda: False)

        spec.loader.exec_module = load_and_narrow  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _TorchCpu())  # type: ignore[arg-type]
