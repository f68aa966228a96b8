"""Calls of tools, and turns to users, from the rank that holds the engine: asked over the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ppojob_trainer.rpc.client import Call, Caller, Peer, Pending
from ppojob_trainer.rpc.messages.agents import Act, Acted, ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.wire import RequestId


@dataclass(frozen=True)
class RemoteTools:
    """The tools of one generation phase; see `driver.Tools`.

    All calls of a row go to one rank, by the number of the row.

    Attributes:
        caller: asks.
        peers: the ranks of the role `tools`, at least one.
        rows: (rows,) batch and number in it of each row of the phase.
        created: (rows,) what the data says the tools of a row are made with: JSON by tool.
    """

    caller: Caller
    peers: Sequence[Peer]
    rows: Sequence[tuple[BatchName, int]]
    created: Sequence[Mapping[str, bytes]]

    def start(self, number: int, turn: int, calls: Sequence[ToolCall]) -> Pending[Acted]:
        """Ask for the calls of a turn."""
        batch, row = self.rows[number]
        made = self.created[number]
        told = [
            call
            if call.to_user
            else msgspec.structs.replace(call, created=made.get(call.name, call.created))
            for call in calls
        ]
        # No epoch: whichever attempt of the role serves is asked, as its loss costs no step.
        id_ = RequestId(0, batch.step, f"{batch.label}/act/{row}", turn, batch.rewinds)
        peer = self.peers[row % len(self.peers)]
        return self.caller.start([Call(peer, ACT, Act(batch, row, turn, told), id_)])

    def answers(self, begun: Pending[Acted]) -> list[ToolAnswer]:
        """Wait for the calls of a turn."""
        (acted,) = self.caller.wait(begun)
        return acted.answers

    def give_up(self, begun: Pending[Acted]) -> None:
        """Wait for them no longer."""
        self.caller.give_up(begun)
