from pathlib import Path

import pytest
import reward_functions


@pytest.fixture
def source(tmp_path: Path) -> reward_functions.Source:
    """Writes a reward function; answers its settings."""
    return reward_functions.maker(tmp_path)
