import subprocess
import sys

import pytest


@pytest.mark.processes
def test_the_fallback_engine_loads_no_vllm() -> None:
    code = "import sys, ppojob_trainer.rollout.factory as f; assert 'vllm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
