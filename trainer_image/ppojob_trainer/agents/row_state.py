"""How far a row has come: plain data, which checkpoints hold of rows that are under way."""

from dataclasses import dataclass, field, replace

import msgspec

from ppojob_trainer.data.media.pictures import LaterPicture
from ppojob_trainer.rollout.protocol import FinishReason
from ppojob_trainer.rollout.trajectory import Segment
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.wire import Conversation


@dataclass
class RowState:
    """How far a row has come: all that a checkpoint has to hold of one that is under way.

    Attributes:
        segments: what was drawn and given.
        finish_reason: of the last request; "abort": it goes on.
        is_waiting: whether the last turn waits for an answer.
        experts: of its context up to the last request, see `Finished`.
        turn_began: number of the first segment of the turn that is being drawn.
        experts_before: those of the contexts before it, 0 of the last token of each.
        turns: that the model has ended.
        answered: how many answers it was given.
        answers: of tools, without what they say, which is in `segments`.
        of_user: of its user, likewise.
        conversation: that the user hears; None before the first turn.
        shown: pictures behind the prompt.
    """

    segments: list[Segment] = field(default_factory=list)
    finish_reason: FinishReason = "abort"
    is_waiting: bool = False
    experts: bytes = b""
    turn_began: int = 0
    experts_before: bytes = b""
    turns: int = 0
    answered: int = 0
    answers: list[ToolAnswer] = field(default_factory=list)
    of_user: list[ToolAnswer] = field(default_factory=list)
    conversation: Conversation | None = None
    shown: list[LaterPicture] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the row has ended."""
        return self.finish_reason != "abort" and not self.is_waiting

    @property
    def contexts(self) -> int:
        """How many contexts it has."""
        return 1 + sum(segment.begins_context for segment in self.segments)

    @property
    def context(self) -> int:
        """Number of the first segment of the context that is read."""
        starts = (n for n, segment in enumerate(self.segments) if segment.begins_context)
        return max(starts, default=0)

    @property
    def drawn(self) -> int:
        """How many tokens the policy wrote."""
        written = (one for one in self.segments if one.is_trained and not one.is_of_data)
        return sum(len(segment.tokens) for segment in written)

    @property
    def written(self) -> tuple[int, ...]:
        """What was drawn of the turn that is being drawn, or was the last."""
        return tuple(token for s in self.segments[self.turn_began :] for token in s.tokens)

    def copy(self) -> "RowState":
        """One that goes on by itself."""
        heard = self.conversation
        return replace(
            self,
            segments=list(self.segments),
            answers=list(self.answers),
            of_user=list(self.of_user),
            conversation=heard
            and msgspec.structs.replace(
                heard,
                messages=list(heard.messages),
                spoken=list(heard.spoken),
                drawn=list(heard.drawn),
            ),
            shown=list(self.shown),
        )
