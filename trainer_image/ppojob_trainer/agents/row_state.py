"""Row state: the progress of a row in flight, as plain data for checkpoints."""

from dataclasses import dataclass, field, replace

import msgspec

from ppojob_trainer.data.media.images import LaterImage
from ppojob_trainer.rollout.protocol import FinishReason
from ppojob_trainer.rollout.trajectory import Segment
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall
from ppojob_trainer.tools.wire import Conversation


@dataclass
class RowState:
    """The progress of a row: everything that a checkpoint has of one in flight."""

    segments: list[Segment] = field(default_factory=list)
    finish_reason: FinishReason = "abort"  # of the last request; "abort": it continues
    is_waiting: bool = False
    experts: bytes = b""  # of its context up to the last request, see `Finished`
    turn_began: int = 0  # number of the first segment of the current turn
    experts_before: bytes = b""  # those of the earlier contexts, 0 for the last token of each
    turns: int = 0
    answered: int = 0  # number of answers to the finished `turns` of the model
    # Of tools, without their texts, which are in `segments`.
    answers: list[ToolAnswer] = field(default_factory=list)
    of_user: list[ToolAnswer] = field(default_factory=list)  # of its user simulator, likewise
    conversation: Conversation | None = None
    shown: list[LaterImage] = field(default_factory=list)
    # Calls that its environment has answered, in order.
    acted: list[ToolCall] = field(default_factory=list)
    score: ToolAnswer | None = None  # of its environments at its end, as a reward

    @property
    def is_over(self) -> bool:
        """Whether the row has ended."""
        return self.finish_reason != "abort" and not self.is_waiting

    @property
    def contexts(self) -> int:
        """Return the number of its contexts."""
        return 1 + sum(segment.begins_context for segment in self.segments)

    @property
    def context(self) -> int:
        """Return the number of the first segment of the current context."""
        starts = (n for n, segment in enumerate(self.segments) if segment.begins_context)
        return max(starts, default=0)

    @property
    def drawn(self) -> int:
        """Return how many tokens the policy generated."""
        written = (one for one in self.segments if one.is_trained and not one.is_of_data)
        return sum(len(segment.tokens) for segment in written)

    @property
    def written(self) -> tuple[int, ...]:
        """Return the generated tokens of the current turn, or of the last one."""
        return tuple(token for s in self.segments[self.turn_began :] for token in s.tokens)

    @property
    def kept_segments(self) -> tuple[Segment, ...]:
        """Return the segments, those of turns that an agent loop masks as if they were given."""
        masked = {number for one in self.of_user for number in one.masked}
        if not masked or self.conversation is None:
            return tuple(self.segments)
        lengths = [one.completion_tokens for one in self.conversation.model_turns]
        turns = (number for number, length in enumerate(lengths) for _ in range(length))
        found = []
        for one in self.segments:
            turn, *_ = [next(turns) for _ in one.tokens] if one.is_trained else [None]
            is_kept = turn not in masked
            found.append(one if is_kept else Segment(one.tokens, reward=one.reward))
        return tuple(found)

    def copy(self) -> "RowState":
        """Return an independent copy."""
        own = self.conversation
        return replace(
            self,
            segments=list(self.segments),
            answers=list(self.answers),
            of_user=list(self.of_user),
            conversation=own
            and msgspec.structs.replace(
                own,
                messages=list(own.messages),
                user_turns=list(own.user_turns),
                model_turns=list(own.model_turns),
            ),
            shown=list(self.shown),
            acted=list(self.acted),
        )
