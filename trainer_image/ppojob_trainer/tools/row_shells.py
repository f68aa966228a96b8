"""Environments of the tool `bash` whose commands run in containers, one a row.

Calls wait for a container in threads of this process, not in the child processes of other tools: a
container that waits for room would have kept others from ending.
"""

import logging
import threading
import weakref
from functools import partial
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.well_known import BASH_TOOL
from ppojob_trainer.children.process import ChildDied
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.containers.shell import ContainerNotStarted, ContainerShell, OpenContainer
from ppojob_trainer.errors import StateLost
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.answers import for_the_model
from ppojob_trainer.tools.built_in.bash import Bash
from ppojob_trainer.tools.environments import Environments, Kind, Method
from ppojob_trainer.tools.wire import CallTool, EndRow, ToolCalled

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 2


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
        default = agent.containers.image

        def open_shell(
            row: str, image: str | None = default, folder: str = "", activate: str = ""
        ) -> ContainerShell:
            if not image:
                raise ContainerNotStarted(
                    "image: got none, neither in create_kwargs nor in containers"
                )
            return ContainerShell(open_container(row, image), seconds, folder, activate)

        self._agent = agent
        kind = Kind(BASH_TOOL, partial(Bash, open_shell), scores=True, takes_row=True)
        self._environments = Environments({position: Method(kind, Bash.bash)}, lambda value: value)
        self._not_started: dict[str, ContainerNotStarted] = {}  # by row, until its end
        # An answer that was lost on its way may be asked for again, while the call still runs.
        self._locks = weakref.WeakValueDictionary[str, threading.Lock]()
        self._guard = threading.Lock()

    def answer(self, request: CallTool | EndRow) -> ToolCalled:
        """Run a command, or score and delete the container; exceptions become answers.

        A lost container is started again, and its commands are repeated. Raises ChildDied if it is
        lost twice, and at each call of a row whose container did not start.
        """
        lost: StateLost | None = None
        with self._guard:
            lock = self._locks.setdefault(request.row, threading.Lock())
        with lock:
            for _ in range(_ATTEMPTS):
                try:
                    return ToolCalled(request.number, self._answer(request))
                except ContainerNotStarted as problem:
                    _log.warning("%s: no container: %s", request.row, problem)
                    self._not_started[request.row] = problem
                    raise ChildDied(f"has no container: {problem}") from None
                except StateLost as problem:
                    _log.warning("%s: the container was lost: %s", request.row, problem)
                    lost = problem
                except Exception as error:  # of the row's data
                    text, where = raised(error, __file__)
                    return ToolCalled(request.number, raised=text, where=where)
                finally:
                    if isinstance(request, EndRow):
                        self._not_started.pop(request.row, None)
        raise ChildDied(f"lost its container: {lost}")

    def _answer(self, request: CallTool | EndRow) -> ToolAnswer:
        if request.row in self._not_started:
            raise self._not_started[request.row]
        if isinstance(request, EndRow):
            created = msgspec.json.decode(request.created, type=dict[str, dict[str, Any]])
            if created.get(BASH_TOOL, {}).get("test"):
                return ToolAnswer("", self._environments.end(request))
            self._environments.close(request.row)  # nothing to score: no container is started
            return ToolAnswer("")
        text = str(self._environments.call(request))
        agent = self._agent
        most, side = agent.max_tool_response_characters, agent.tool_response_truncate_side
        return ToolAnswer(for_the_model(text, most, side))
