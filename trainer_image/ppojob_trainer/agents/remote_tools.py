"""Remote tools: tool calls and user simulator turns, sent from the rank that holds the engine.

Calls of `search` go to the role `retriever`, if there is one, all others to the role `tools`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ppojob_api.well_known import SEARCH_TOOL
from ppojob_trainer.parallel.collectives import broadcast_in_engine
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rpc.client import Call, Caller, Peer, Pending
from ppojob_trainer.rpc.messages.agents import Act, Acted, SeenImage, ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.wire import RequestId

Started = tuple[Pending[Acted], Sequence[int]]
"""Calls of a turn in flight: the requests, and the places of their answers among the calls."""


@dataclass(frozen=True)
class RemoteTools:
    """The tools of one generation phase.

    All calls of a row go to one rank of a role, by the number of the row. Of `tools` and
    `retrievers`, the ranks of these roles, there is at least one.
    """

    caller: Caller
    tools: Sequence[Peer]
    retrievers: Sequence[Peer]
    step: int  # of the phase, which may also generate rows of later steps
    rows: Sequence[tuple[BatchName, int]]  # (rows,) batch and number in it of each row of the phase
    # (rows,) prompt of each row, with its tools and their constructor arguments.
    prompts: Sequence[PromptTokens]
    environments: Mapping[str, str] = field(default_factory=dict)  # `AgentSpec.environments`
    attempt: int = 0  # of the engines: calls of regenerated rows are other calls
    # This rank's. Of ranks that share an engine the first makes the calls and broadcasts the
    # answers, since a tool may answer differently the second time.
    world: World = field(default_factory=World.alone)

    def start(
        self,
        number: int,
        turn: int,
        calls: Sequence[ToolCall],
        images: list[SeenImage] | None = None,
        before: Sequence[ToolCall] = (),
    ) -> Started | None:
        """Send the calls, at least one, of a row that had `turn` answers before.

        Only the first rank of an engine sends. `images` are those of the row so far; None if
        tools cannot show it any. `before` are the earlier calls to the row's environment.
        """
        if not self.world.leads_engine:
            return None
        batch, row = self.rows[number]
        prompt = self.prompts[number]
        requests, places = [], []
        for label, peers in (("act", self.tools), ("search", self.retrievers)):
            mine = [place for place, call in enumerate(calls) if self._peers(call) is peers]
            if not mine:
                continue
            own = [self._with_arguments(calls[place], prompt) for place in mine]
            seen = None if peers is self.retrievers else images
            earlier = [] if peers is self.retrievers else before
            act = Act(batch, row, turn, own, prompt.tools, seen, list(earlier))
            requests.append(self._call(label, peers[row % len(peers)], act))
            places += mine
        return self.caller.start(requests), places

    def end_row(self, number: int, turn: int, before: Sequence[ToolCall]) -> Started | None:
        """Say that a row has ended, which had `turn` answers; to be waited for as for calls."""
        if not self.world.leads_engine:
            return None
        batch, row = self.rows[number]
        prompt = self.prompts[number]
        created = self._created(prompt)
        act = Act(batch, row, turn, [], prompt.tools, before=list(before), created=created)
        pending = self.caller.start([self._call("end", self.tools[row % len(self.tools)], act)])
        return pending, range(1)

    def _call(self, label: str, peer: Peer, act: Act) -> Call[Acted]:
        # No attempt: any attempt of the role may answer, as its loss costs no step.
        stage = f"{act.batch.step}/{act.batch.label}/{label}/{act.row}/{self.attempt}"
        return Call(peer, ACT, act, RequestId(0, self.step, stage, act.turn, act.batch.rewinds))

    def wait(self, started: Started | None) -> list[ToolAnswer]:
        """Wait for the calls of a turn; one answer each, in the order of the calls."""
        answers = None
        if started is not None:
            pending, places = started
            found = [one for acted in self.caller.wait(pending) for one in acted.answers]
            # The end of a row may have no answer.
            by_place = dict(zip(places, found, strict=False))
            answers = [by_place[place] for place in range(len(found))]
        return broadcast_in_engine(self.world, answers)

    def cancel(self, started: Started | None) -> None:
        """Stop waiting for them."""
        if started is not None:
            self.caller.cancel(started[0])

    def _peers(self, call: ToolCall) -> Sequence[Peer]:
        """Return the peers for a call; one of an unknown tool goes to whichever role there is."""
        is_search = call.name == SEARCH_TOOL and not call.to_user
        return self.retrievers if self.retrievers and (is_search or not self.tools) else self.tools

    def _with_arguments(self, call: ToolCall, prompt: PromptTokens) -> ToolCall:
        """Return a call with the row's constructor arguments: of the tool, or all environments."""
        if call.to_user:
            return call
        if call.name in self.environments:
            return msgspec.structs.replace(call, created=self._created(prompt))
        return msgspec.structs.replace(call, created=prompt.created.get(call.name, call.created))

    def _created(self, prompt: PromptTokens) -> bytes:
        """Return the row's constructor arguments of all environments."""
        names = sorted(set(self.environments.values()))
        created = {name: msgspec.Raw(prompt.created.get(name, b"{}")) for name in names}
        return msgspec.json.encode(created)
