"""What a role's rank is to the process around it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.server import Route


class Worker(Protocol):
    """Answers the methods of a role."""

    def routes(self) -> list[Route]:
        """The methods that it answers."""
        ...


WorkerFactory = Callable[[PodEnvironment, RankEnvironment, KeyRing], AbstractContextManager[Worker]]
"""Builds the worker of a rank, which lives as long as the block."""
