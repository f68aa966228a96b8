"""Calls tools in child processes that are killed when they take too long."""

import itertools
import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec, ToolSpec
from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_trainer.children.frames import FrameError
from ppojob_trainer.children.pool import (
    DEFAULT_MEMORY_BYTES,
    ChildPool,
    NotStarted,
    import_files,
)
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError, JobFailed
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.sandbox.settings import SandboxSettings
from ppojob_trainer.tools.answers import MARK_CHARACTERS, cut, for_the_model, told
from ppojob_trainer.tools.arguments import WrongArguments, read_arguments
from ppojob_trainer.tools.schemas import parameters_of
from ppojob_trainer.tools.users import REPLY_CHARACTERS
from ppojob_trainer.tools.wire import CallTool, LoadTools, ToolCalled, ToolsLoaded


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call as the model wrote it, or a turn that a user answers.

    Attributes:
        name: of the tool or user.
        arguments: JSON object, as text; it may be wrong. Of a user the conversation.
        created: JSON object: what the row says the tool is made with, or tells the user.
        instance: names the call, the same whenever it is made again.
        tools: names of those that may be called; empty for all.
        to_user: whether a user is asked.
    """

    name: str
    arguments: str
    created: bytes
    instance: str
    tools: tuple[str, ...] = ()
    to_user: bool = False


class ToolPool(Closeable):
    """Children that call tools and ask users; each call has a limit that nothing can outlive.

    Whatever a tool or a model does is an answer. When a call is too slow, or its process dies, that
    process and everything it started are killed, and the next call gets another. A call whose
    process dies is made once more, in what is left of its time: somebody else may have killed it,
    or an earlier call have spoilt it.

    Args:
        memory_bytes: limit of each process's data.
        variables: names of environment variables that tools see, where they are set.
        elsewhere: names of tools that another role answers.

    Raises:
        ConfigError: tools cannot be loaded; every problem, one line each.
        JobFailed: processes are killed again and again while they load them.
    """

    def __init__(
        self,
        agent: AgentSpec,
        *,
        sandbox: SandboxSpec | None = None,
        processes: int = 1,
        memory_bytes: int | None = DEFAULT_MEMORY_BYTES,
        variables: Sequence[str] = (),
        elsewhere: Collection[str] = (),
        log: logging.Logger | None = None,
    ) -> None:
        self._agent = agent
        self._answering: list[ToolSpec | InteractionSpec] = [*agent.tools, *agent.interactions]
        self._positions = {tool.name: position for position, tool in enumerate(agent.tools)}
        self._users = {
            user.name: position
            for position, user in enumerate(agent.interactions, start=len(agent.tools))
        }
        self._parameters = [parameters_of(tool) for tool in agent.tools]
        self._sandbox = SandboxSettings.of(sandbox or SandboxSpec())
        self._log = log or logging.getLogger(__name__)
        self._numbers = itertools.count(1)
        self._is_compared = False
        self._elsewhere = elsewhere
        try:
            self._children = ChildPool(
                "ppojob_trainer.tools.child",
                count=processes,
                load=self._load,
                memory_bytes=memory_bytes,
                variables=variables,
                log=self._log,
            )
        except NotStarted as problem:
            raise JobFailed(f"spec.agent.tools: {problem.reason}") from None

    def start(self, calls: Sequence[Wanted]) -> Future[list[ToolAnswer]]:
        """Have calls made, one after the other; others are made beside them."""
        return self._children.submit(self._make_all, calls)

    def close(self) -> None:
        """End all children, at once also those that are at work. Idempotent."""
        self._children.close()

    def _make_all(self, calls: Sequence[Wanted]) -> list[ToolAnswer]:
        return [self._make(call) for call in calls]

    def _make(self, call: Wanted) -> ToolAnswer:
        """Make a call; what goes wrong becomes an answer."""
        began = time.monotonic()
        known = call.tools or tuple(self._positions)
        position = self._positions.get(call.name) if call.name in known else None
        if call.to_user:
            made = self._called(call, self._users[call.name], call.arguments.encode())
        elif position is None:
            made = self._failed("unknown", call, ", ".join(known))
        else:
            try:
                arguments = read_arguments(call.arguments, self._parameters[position])
                made = self._called(call, position, arguments)
            except WrongArguments as wrong:
                made = self._failed("arguments", call, str(wrong))
        return msgspec.structs.replace(made, seconds=time.monotonic() - began)

    def _called(self, call: Wanted, position: int, arguments: bytes) -> ToolAnswer:
        limit = self._answering[position].time_limit_seconds
        try:
            answer = self._answer(call, position, arguments, limit)
        except ChildTimeout:
            return self._failed("timeout", call, f"{limit:g}")
        except (ChildDied, FrameError, NotStarted, msgspec.MsgspecError) as death:
            self._log.warning("%s: %s: its process %s", call.instance, call.name, death)
            return self._failed("died", call)
        if answer.raised:
            self._log.warning(
                "%s: %s: %s: %s", call.instance, call.name, answer.raised, answer.where
            )
            return self._failed("raised", call, answer.raised)
        # The child has cut it already, unless the tool has written the answer itself.
        limit_of_tools = self._agent.max_tool_response_characters
        most = (REPLY_CHARACTERS if call.to_user else limit_of_tools) + 2 * MARK_CHARACTERS
        text = cut(answer.text, most, self._agent.tool_response_truncate_side)
        return ToolAnswer(text, answer.reward, ends=answer.ends and call.to_user)

    def _answer(self, call: Wanted, position: int, arguments: bytes, limit: float) -> ToolCalled:
        number = next(self._numbers)
        request = CallTool(number, position, call.instance, arguments, call.created)
        began = time.monotonic()
        try:
            return self._children.call(request, limit, ToolCalled)
        except ChildDied:
            left = limit - (time.monotonic() - began)
            if left <= 0:
                raise
            return self._children.call(request, left, ToolCalled)

    def _failed(self, failure: str, call: Wanted, why: str = "") -> ToolAnswer:
        agent = self._agent
        text = for_the_model(
            told(failure, call.name, why),
            agent.max_tool_response_characters,
            agent.tool_response_truncate_side,
        )
        return ToolAnswer(text, failure=failure)

    def _load(self, child: BoundedProcess) -> None:
        agent = self._agent
        request = LoadTools(
            agent.model_dump_json().encode(),
            list(self._elsewhere),
            not self._is_compared,
            self._sandbox,
        )
        loaded = import_files(
            child,
            request,
            ToolsLoaded,
            files=(one.source.file or "" for one in self._answering if one.source),
            where="spec.agent.tools",
            what="tools",
        )
        if loaded.problems:
            raise ConfigError(loaded.problems)
        # A child that comes later, in the place of one that was killed, finds a job under way.
        self._is_compared = True
