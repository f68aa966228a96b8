"""An API server for what the controller tells, and ranks that it asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rpc_peers import caller_of, rings, role_of, roles_of, serve  # noqa: F401
from status_server import StatusServer, status_server

from ppojob_trainer.controller import roles


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here dies a while after the failure that it is to blame for."""
    monkeypatch.setattr(roles, "_LOSS_GRACE_SECONDS", 0.2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    with status_server(tmp_path) as one:
        yield one
