from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_files import PromptFiles

from ppojob_trainer.data.chat import ChatTokenizer


@pytest.fixture
def files(folder: Path) -> Iterator[PromptFiles]:
    """For the model in a folder that the module has."""
    with ChatTokenizer(folder / "model") as chat:
        yield PromptFiles(folder, chat)
