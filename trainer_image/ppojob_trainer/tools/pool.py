"""Tool pool: runs tool calls in child processes with time limits."""

import itertools
import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Final

import msgspec

from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec, ToolSpec
from ppojob_api.v1alpha1.rollout import SandboxSpec
from ppojob_api.well_known import BASH_TOOL
from ppojob_trainer.children.frames import FrameError
from ppojob_trainer.children.pool import (
    DEFAULT_MEMORY_BYTES,
    ChildPool,
    NotStarted,
    StatefulChild,
    import_files,
)
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.containers.shell import OpenContainer
from ppojob_trainer.data.media.image_cells import BadImage, read_images
from ppojob_trainer.data.media.images import MOST_BYTES, packed
from ppojob_trainer.errors import JobFailed
from ppojob_trainer.rpc.messages.agents import (
    Act,
    Acted,
    ToolAnswer,
    ToolCall,
    reached_environment,
)
from ppojob_trainer.sandbox.executor import Settings
from ppojob_trainer.tools.answers import failure_text, for_the_model
from ppojob_trainer.tools.arguments import WrongArguments, read_arguments
from ppojob_trainer.tools.row_shells import RowShells
from ppojob_trainer.tools.schemas import parameters_of
from ppojob_trainer.tools.wire import (
    AgentCode,
    CallTool,
    EndRow,
    EnvironmentCall,
    LoadTools,
    LoopSettings,
    RowCall,
    ToolCalled,
    ToolsLoaded,
)

_log = logging.getLogger(__name__)
_END: Final = ToolCall("the end of the row", "{}")
"""Name of scores and closes of environments, in messages."""
_WAITING_THREADS: Final = 1024
"""Most calls that wait for containers of rows at once."""


class ToolPool(Closeable):
    """Child processes that run tool calls and user simulators, with a time limit per call.

    Any failure of a tool or a model is an answer. If a call is too slow, or its process dies, that
    process and its descendants are killed, and the next call gets another one. A call whose process
    died is retried once, within the rest of its time: it may have been killed from outside, or
    damaged by an earlier call.

    The environment of a row lives in one process. If that is lost, another one makes it again: it
    repeats the row's earlier calls.

    Args:
        variables: names of environment variables that tools get, if set.
        elsewhere: names of tools that another role runs.
        open_container: starts containers of rows (`agent.containers`); None: no row is run.
        loop_settings: what agent loops read of the job; None: they are not run.

    Raises:
        ConfigError: tools cannot be loaded; every problem, one line each.
        JobFailed: processes are killed repeatedly while they load tools.
    """

    def __init__(
        self,
        agent: AgentSpec,
        *,
        sandbox: SandboxSpec | None = None,
        processes: int = 1,
        variables: Sequence[str] = (),
        elsewhere: Collection[str] = (),
        open_container: OpenContainer | None = None,
        loop_settings: LoopSettings | None = None,
    ) -> None:
        self._agent = agent
        self._loop_settings = loop_settings
        self._answering: list[ToolSpec | InteractionSpec] = [*agent.tools, *agent.interactions]
        self._tools = [tool.name for tool in agent.tools]
        self._users = [user.name for user in agent.interactions]
        self._parameters = [parameters_of(tool) for tool in agent.tools]
        self._methods = agent.environments
        self._homes: dict[str, StatefulChild] = {}
        self._sandbox = msgspec.convert(sandbox or SandboxSpec(), Settings, from_attributes=True)
        self._numbers = itertools.count(1)
        self._is_compared = False
        self._loops: frozenset[str] = frozenset()
        self._scores = False
        self.row_calls: dict[str, list[RowCall]] = {}  # of user simulators with code, by name
        self._elsewhere = list(elsewhere)
        self._shells: RowShells | None = None
        threads = processes * (4 if self._methods else 1)
        if agent.containers is not None:
            self._elsewhere.append(BASH_TOOL)
            threads += _WAITING_THREADS
            if open_container is not None:
                seconds = self._sandbox.time_limit_seconds
                position = self._tools.index(BASH_TOOL)
                self._shells = RowShells(agent, position, open_container, seconds)
        try:
            self._children = ChildPool(
                "ppojob_trainer.tools.child",
                count=processes,
                threads=threads,
                load=self._load,
                memory_bytes=DEFAULT_MEMORY_BYTES,
                variables=variables,
                log=_log,
            )
        except NotStarted as problem:
            raise JobFailed(f"spec.agent.tools: {problem}") from None

    def start(self, act: Act) -> Future[Acted]:
        """Run the calls of a turn in sequence, concurrently with other turns.

        Without calls the row has ended: its environments are scored and closed. The reward of the
        one answer is the score; there is no answer if no environment has a score.
        """
        row = f"step {act.batch.step}/{act.batch.label}/row {act.row}"
        return self._children.submit(self._run_turn if act.calls else self._end_row, act, row)

    def _run_turn(self, act: Act, row: str) -> Acted:
        answers, before = list[ToolAnswer](), [self._environment_call(one) for one in act.before]
        total = sum(len(one.file) for one in act.images or ())
        for number, call in enumerate(act.calls):
            # A user simulator gets the same name of the row at each turn, as in verl.
            instance = row if call.to_user else f"{row}/turn {act.turn}/call {number}"
            began = time.monotonic()
            answer = self._run(act, call, instance, row, before)
            seconds, size = time.monotonic() - began, total + len(answer.images)
            if answer.images and size > MOST_BYTES:
                why = f"got {size} bytes of images in a row; at most {MOST_BYTES}"
                _log.warning("%s: %s: %s", instance, call.name, why)
                answer, size = self._failed("raised", call, why), total
            answers.append(msgspec.structs.replace(answer, seconds=seconds))
            total = size
        return Acted(answers)

    def _end_row(self, act: Act, row: str) -> Acted:
        calls = [self._environment_call(one) for one in act.before]
        ended = [*self._end_in_child(act, row, calls), *self._end_in_container(act, row, calls)]
        if len(ended) < 2:
            return Acted(ended)
        failed = next((one for one in ended if one.failure), None)
        both = msgspec.structs.replace(ended[0], reward=sum(one.reward for one in ended))
        return Acted([failed or both])

    def _end_in_child(
        self, act: Act, row: str, calls: Sequence[EnvironmentCall]
    ) -> Sequence[ToolAnswer]:
        if not self._scores and not self._homes.get(row, StatefulChild()).is_alive:
            return ()
        own = self._of_place(calls, in_container=False)
        limit = max(self._limit(self._tools.index(name)) for name in self._methods)
        request = EndRow(next(self._numbers), row, act.created, own)
        answer = self._answered(request, limit, _END, row)
        self._homes.pop(row, None)
        return (answer,) if self._scores else ()

    def _end_in_container(
        self, act: Act, row: str, calls: Sequence[EnvironmentCall]
    ) -> Sequence[ToolAnswer]:
        if self._shells is None or BASH_TOOL not in (act.tools or self._tools):
            return ()
        own = self._of_place(calls, in_container=True)
        request = EndRow(next(self._numbers), row, act.created, own)
        return (self._answered(request, 0.0, _END, row, in_container=True),)

    def _is_in_container(self, position: int) -> bool:
        return self._shells is not None and self._tools[position] == BASH_TOOL

    def _of_place(
        self, calls: Sequence[EnvironmentCall], *, in_container: bool
    ) -> list[EnvironmentCall]:
        """Return the calls that went to containers of rows, or those to child processes."""
        return [one for one in calls if self._is_in_container(one.tool) == in_container]

    def close(self) -> None:
        """Kill all child processes, also busy ones. Idempotent."""
        self._children.close()

    def _run(
        self, act: Act, call: ToolCall, instance: str, row: str, before: list[EnvironmentCall]
    ) -> ToolAnswer:
        """Run a call; a failure becomes an answer. One to the environment is added to `before`."""
        known = act.tools or self._tools
        if call.to_user:
            position = len(self._tools) + self._users.index(call.name)
            arguments = call.arguments.encode()
            request = CallTool(
                next(self._numbers), position, instance, arguments, call.created, act.images
            )
            return self._answered(request, self._limit(position), call, instance)
        if call.name not in known or call.name not in self._tools:
            return self._failed("unknown", call, ", ".join(known))
        try:
            own = self._environment_call(call)
        except WrongArguments as wrong:
            return self._failed("arguments", call, str(wrong))
        number, in_environment = next(self._numbers), call.name in self._methods
        in_container = self._is_in_container(own.tool)
        request = CallTool(
            number,
            own.tool,
            instance,
            own.arguments,
            call.created,
            act.images,
            row if in_environment else "",
            self._of_place(before, in_container=in_container) if in_environment else [],
        )
        limit = self._limit(own.tool)
        answer = self._answered(request, limit, call, instance, in_container=in_container)
        if in_environment and reached_environment(answer):
            before.append(own)
        return answer

    def _answered(
        self,
        request: CallTool | EndRow,
        limit: float,
        call: ToolCall,
        instance: str,
        *,
        in_container: bool = False,
    ) -> ToolAnswer:
        """Have a child or the row's container answer; a failure becomes an answer."""
        try:
            if in_container and self._shells is not None:
                called = self._shells.answer(request)
            else:
                called = self._call_child(request, limit)
        except ChildTimeout:
            _log.warning("%s: %s: no answer in %g s", instance, call.name, limit)
            return self._failed("timeout", call, f"{limit:g}")
        except (ChildDied, FrameError, NotStarted, msgspec.MsgspecError) as death:
            _log.warning("%s: %s: no answer: %s", instance, call.name, death)
            return self._failed("died", call)
        if called.raised:
            told = ": ".join(filter(None, (called.raised, called.where)))
            _log.warning("%s: %s: %s", instance, call.name, told)
            return self._failed("raised", call, called.raised)
        try:
            images_shown = packed(read_images(called.images))
        except BadImage as bad:
            _log.warning("%s: %s: %s", instance, call.name, bad)
            return self._failed("raised", call, str(bad))
        return msgspec.structs.replace(called.answer, images=images_shown)

    def _call_child(self, request: CallTool | EndRow, limit: float) -> ToolCalled:
        home = self._homes.setdefault(request.row, StatefulChild()) if request.row else None
        if home is not None and not home.is_alive:
            limit *= 1 + len(request.before)  # which are repeated
        until = time.monotonic() + limit
        try:
            return self._children.call(request, limit, ToolCalled, home)
        except ChildDied:
            if (left := until - time.monotonic()) <= 0:
                raise
            return self._children.call(request, left, ToolCalled, home)

    def _limit(self, position: int) -> float:
        """Return the time limit of a call; that of a command is the sandbox's."""
        one = self._answering[position]
        is_shell = self._methods.get(one.name) == BASH_TOOL
        # The first call also sets the workspace up.
        return one.time_limit_seconds + is_shell * 2 * self._sandbox.time_limit_seconds

    def _environment_call(self, call: ToolCall) -> EnvironmentCall:
        """Return an earlier call, as it was made."""
        position = self._tools.index(call.name)
        arguments = read_arguments(call.arguments, self._parameters[position])
        return EnvironmentCall(position, arguments)

    def _failed(self, failure: str, call: ToolCall, why: str = "") -> ToolAnswer:
        agent = self._agent
        text = for_the_model(
            failure_text(failure, call.name, why),
            agent.max_tool_response_characters,
            agent.tool_response_truncate_side,
        )
        ends = call.to_user and call.name in self._loops
        return ToolAnswer(text, failure=failure, ends=ends)

    def _load(self, child: BoundedProcess) -> None:
        agent = msgspec.convert(self._agent, AgentCode, from_attributes=True)
        request = LoadTools(
            agent, self._loop_settings, self._elsewhere, not self._is_compared, self._sandbox
        )
        files = (one.source.file or "" for one in self._answering if one.source)
        loaded = import_files(
            child, request, ToolsLoaded, files=files, where="spec.agent.tools", what="tools"
        )
        self._loops, self._scores = frozenset(loaded.loops), loaded.scores
        self.row_calls = loaded.row_calls
        # Only the first child compares schemas with those of the servers.
        self._is_compared = True
