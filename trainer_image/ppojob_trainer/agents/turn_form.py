"""How turns are read and answered: the format of a model's calls, and its chat template."""

from collections.abc import Sequence
from dataclasses import dataclass

from ppojob_trainer.agents.formats.calls import BadCall, Call, Format
from ppojob_trainer.data.chat import ChatTokenizer, Tools, tool_name
from ppojob_trainer.data.media.picture_form import PictureForm
from ppojob_trainer.data.media.pictures import behind_pictures, packed, unpacked
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.json_value import Json
from ppojob_trainer.rpc.messages.agents import ToolCall
from ppojob_trainer.tools.wire import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """What follows a turn of the model; where nothing does, the row is over.

    Attributes:
        calls: to be made, in order.
        reply: what the model is told where it should have called and did not.
    """

    calls: tuple[ToolCall, ...] = ()
    reply: str = ""


@dataclass(frozen=True)
class ChatForm:
    """The form of chat models: calls in a format, answers by the chat template.

    Methods that write give the token ids from the end of a turn, `written`, to where the model goes
    on.
    """

    chat: ChatTokenizer
    template: TurnTemplate
    form: Format
    tools: Tools
    pictures: PictureForm | None = None
    """How the model takes those that tools show it; None where they cannot."""

    def read(self, tokens: Sequence[int]) -> Turn:
        """What follows a turn; what names no tool is no call, as in verl."""
        if not self.tools:
            return Turn()
        text = self.chat.decode(tokens, skip_special_tokens=not self.form.keeps_special_tokens)
        found = self.form.parse(text, self.tools)
        calls = tuple(
            ToolCall(one.name, one.arguments, id=one.id) for one in found if isinstance(one, Call)
        )
        is_bad = any(isinstance(one, BadCall) for one in found)
        return Turn(calls, self.form.invalid if is_bad and not calls else "")

    def answered(
        self,
        written: Sequence[int],
        calls: Sequence[ToolCall],
        answers: Sequence[str],
        pictures: Sequence[bytes] = (),
    ) -> list[int]:
        """What stands for the answers, (calls,) texts of the tools, with the pictures before each.

        Some templates write whose answer it is, by name or id of the call.
        """
        if self.form.answer is not None:
            # Not even the tokenizer's own tokens live in what a tool says.
            return self.template.text.encode(["", ""], ["".join(map(self.form.answer, answers))])
        shown = [unpacked(held) for held in pictures] or [[]] * len(calls)
        messages: list[dict[str, Json]] = [
            {
                "role": "tool",
                "name": call.name,
                "tool_call_id": call.id,
                "content": behind_pictures(answer, len(files)),
            }
            for call, answer, files in zip(calls, answers, shown, strict=True)
        ]
        ids = self.template.delta(messages, self.tools, written=written)
        files = packed([file for files in shown for file in files])
        return ids if self.pictures is None else self.pictures.expanded(ids, files)

    def replied(self, written: Sequence[int], reply: str) -> list[int]:
        """What stands for `Turn.reply`."""
        if self.form.answer is not None:
            return self.chat.encode(reply)
        return self.heard(written, reply)

    def said(self, written: Sequence[int]) -> str:
        """The text of a turn, as a user hears it; without special tokens, as in verl."""
        return self.chat.decode(written, skip_special_tokens=True)

    def heard(self, written: Sequence[int], text: str) -> list[int]:
        """What stands for the words of a user."""
        user = {"role": "user", "content": text}
        return self.template.delta([user], self.tools, written=written)

    def context(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> list[int]:
        """What stands for a new context: all of it, with these tools; empty for all.

        Raises:
            BadChatTemplate: the template refuses the messages.
        """
        named = {tool_name(schema): schema for schema in self.tools}
        chosen = [named[name] for name in tools if name in named] if tools else self.tools
        return self.template.begun(messages, chosen)
