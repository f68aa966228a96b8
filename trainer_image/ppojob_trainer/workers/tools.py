"""Tools worker: runs tool calls and user simulators for the ranks that generate.

It has no model, no GPU, and a key without permission to command others, since it runs user code, in
child processes with a time limit. A lost call is repeated, and a lost environment of a row is made
again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ppojob_api.topology import retrieved_tools
from ppojob_api.v1alpha1.agent import ContainersSpec
from ppojob_api.well_known import pod_name
from ppojob_trainer.agents.named import agents_of
from ppojob_trainer.containers.local import LocalContainers
from ppojob_trainer.containers.shell import OpenContainer
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment, variables_of_code
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.tools.verl.settings import loop_settings


@dataclass(frozen=True)
class ToolsWorker:
    """Handles `act`."""

    pool: ToolPool

    def routes(self) -> list[Route]:
        return [Route(ACT, self.pool.start)]


@contextmanager
def open_tools_worker(
    environment: PodEnvironment, _rank: RankEnvironment, _keys: KeyRing
) -> Iterator[ToolsWorker]:
    """Open the worker and its processes, which end with the block."""
    spec = environment.config.spec
    assert spec.agent is not None, "the role has tools"
    with ToolPool(
        spec.agent,
        open_container=_opened(environment, spec.agent.containers),
        sandbox=spec.sandbox,
        processes=spec.roles.tools.cpu,
        variables=variables_of_code("tools"),
        elsewhere=[tool.name for tool in retrieved_tools(spec)],
        loop_settings=loop_settings(environment.config, agents_of(spec.agent))
        if spec.agent.agent_loops
        else None,
    ) as pool:
        yield ToolsWorker(pool)


def _opened(environment: PodEnvironment, containers: ContainersSpec | None) -> OpenContainer | None:
    """Return what starts containers of rows: pods on a cluster, else docker or podman."""
    if containers is None:
        return None
    access, config = environment.api_access, environment.config
    if access is None:
        return LocalContainers(containers).open
    from ppojob_trainer.containers.pods import RowPods  # late: other jobs need no WebSockets

    owner = pod_name(config.name, "tools", environment.pod_index)
    pods = RowPods(access, config.namespace, config.name, owner, containers)
    pods.check()
    return pods.open
