"""Makes the modules that these tests share importable under plain names.

pytest's importlib mode puts no test folder on the import path. The modules are registered
here by name, so that test files can import them, also for what decorators need at import time.
"""

import importlib.util
import sys
from pathlib import Path

SHARED = (
    *("literal_algorithms", "literal_policy_losses", "ragged_batches"),
    *("literal_comparison", "literal_loss_comparison", "planted_loss_errors"),
    *("literal_rollout_correction", "correction_comparison", "planted_correction_errors"),
)

for name in SHARED:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
