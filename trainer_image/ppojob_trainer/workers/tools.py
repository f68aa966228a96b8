"""Tools worker: runs tool calls and user simulators for the ranks that generate.

It has no model, no GPU, and a key without permission to command others, since it runs user code, in
child processes with a time limit. A lost call is repeated, and a lost environment of a row is made
again.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ppojob_api.topology import retrieved_tools
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment, variables_of_code
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.agents import Act, Acted, ToolAnswer
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.tools.pool import ToolPool


class ToolsWorker:
    """Handles `act`."""

    def __init__(self, pool: ToolPool) -> None:
        self._pool = pool

    def routes(self) -> list[Route]:
        return [Route(ACT, self._act)]

    def _act(self, request: Act) -> "Future[Acted]":
        batch = request.batch
        row = f"step {batch.step}/{batch.label}/row {request.row}"
        # A user simulator gets the same name of the row at each turn, as in verl.
        instances = [
            row if call.to_user else f"{row}/turn {request.turn}/call {number}"
            for number, call in enumerate(request.calls)
        ]
        acted: Future[Acted] = Future()
        if request.calls:
            answers = self._pool.start(
                request.calls, instances, request.tools, request.pictures, row, request.before
            )
        else:
            answers = self._pool.end_row(row, request.created, request.before)
        answers.add_done_callback(lambda made: _set_acted(made, acted))
        return acted


def _set_acted(made: "Future[list[ToolAnswer]]", acted: "Future[Acted]") -> None:
    if (error := made.exception()) is not None:
        acted.set_exception(error)
        return
    acted.set_result(Acted(made.result()))


@contextmanager
def open_tools_worker(
    environment: PodEnvironment, _rank: RankEnvironment, _keys: KeyRing
) -> Iterator[ToolsWorker]:
    """Open the worker and its processes, which end with the block."""
    spec = environment.config.spec
    assert spec.agent is not None, "the role has tools"
    with ToolPool(
        spec.agent,
        sandbox=spec.sandbox,
        processes=spec.roles.tools.cpu,
        variables=variables_of_code("tools"),
        elsewhere=[tool.name for tool in retrieved_tools(spec)],
    ) as pool:
        yield ToolsWorker(pool)
