"""An API server for tests of what the controller tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from status_server import StatusServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    with StatusServer(tmp_path) as one:
        yield one
