"""Environments of the tool `bash` whose commands run in containers, one a row.

Calls wait for a container in threads of this process, not in the child processes of other tools: a
container that waits for room would have kept others from ending.
"""

import logging
import threading
from collections import defaultdict
from functools import partial

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.well_known import BASH_TOOL
from ppojob_trainer.children.process import ChildDied
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.containers.shell import ContainerLost, ContainerShell, OpenContainer
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.answers import for_the_model
from ppojob_trainer.tools.built_in.bash import Bash
from ppojob_trainer.tools.environments import Environments, Kind, Method
from ppojob_trainer.tools.wire import CallTool, EndRow, ToolCalled

_log = logging.getLogger(__name__)
_ATTEMPTS = 2


class RowShells:
    """The shells of rows.

    Args:
        position: of the tool `bash` among the tools.
        seconds: time limit of a command.
    """

    def __init__(
        self, agent: AgentSpec, position: int, open_container: OpenContainer, seconds: float
    ) -> None:
        assert agent.containers is not None, "the agent has containers"
        default, closed = agent.containers.image, threading.Event()

        def open_shell(row: str, image: str | None = default, folder: str = "") -> ContainerShell:
            if not image:
                raise ValueError("image: got none, neither in create_kwargs nor in containers")
            return ContainerShell(open_container(row, image, closed), folder, seconds)

        self._agent, self._closed = agent, closed
        kind = Kind(BASH_TOOL, partial(Bash, open_shell), scores=True, takes_row=True)
        self._environments = Environments({position: Method(kind, Bash.bash)}, lambda value: value)
        # An answer that was lost on its way may be asked for again, while the call still runs.
        self._locks = defaultdict[str, threading.Lock](threading.Lock)

    def answer(self, request: CallTool | EndRow) -> ToolCalled:
        """Run a command, or score and delete the container; exceptions become answers.

        A lost container is started again, and its commands are repeated. Raises ChildDied if it is
        lost twice.
        """
        lost: ContainerLost | None = None
        with self._locks[request.row]:
            if isinstance(request, EndRow):
                self._locks.pop(request.row)
            for _ in range(_ATTEMPTS):
                try:
                    return ToolCalled(request.number, self._answer(request))
                except ContainerLost as problem:
                    _log.warning("%s: the container was lost: %s", request.row, problem)
                    lost = problem
                except Exception as error:  # of the row's data, or of the cluster
                    text, where = raised(error, __file__)
                    return ToolCalled(request.number, raised=text, where=where)
        raise ChildDied(f"lost its container: {lost}")

    def _answer(self, request: CallTool | EndRow) -> ToolAnswer:
        if isinstance(request, EndRow):
            return ToolAnswer("", self._environments.end(request))
        text = str(self._environments.call(request))
        agent = self._agent
        most, side = agent.max_tool_response_characters, agent.tool_response_truncate_side
        return ToolAnswer(for_the_model(text, most, side))

    def close(self) -> None:
        """Delete all containers, also those that start. Idempotent."""
        self._closed.set()
        self._environments.close()
