"""An API server for what the controller tells, and ranks that it asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rpc_peers import caller_of, rings, role_of, roles_of, serve  # noqa: F401
from status_server import StatusServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    with StatusServer(tmp_path) as one:
        yield one
