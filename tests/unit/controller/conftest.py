"""An API server for what the controller tells, and ranks that it asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rpc_peers import caller_of, rings, role_of, roles_of, serve  # noqa: F401
from status_server import StatusServer, status_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    with status_server(tmp_path) as one:
        yield one
