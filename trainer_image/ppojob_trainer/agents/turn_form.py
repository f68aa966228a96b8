"""Turn format: parses tool calls in a model's turns, and formats answers by its chat template.

Methods that write raise `BadChatTemplate` if the template refuses the messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.agents.formats.calls import BadCall, Call, Format
from ppojob_trainer.data.chat import ChatTokenizer, Tools, tool_name
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.images import HASH, behind_images, packed, unpacked
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.json_value import Json
from ppojob_trainer.rpc.messages.agents import ToolCall
from ppojob_trainer.tools.wire import Message, ModelRequest


@dataclass(frozen=True, slots=True)
class Turn:
    """What follows a turn of the model; without either, the row is over."""

    calls: tuple[ToolCall, ...] = ()
    reply: str = ""  # message to the model if it lacks a required call


@dataclass(frozen=True)
class ChatForm:
    """The turn format of chat models: calls in a format, answers by the chat template.

    Methods that write return the token ids from the end of a turn, `written`, to where the model
    continues.
    """

    chat: ChatTokenizer
    template: TurnTemplate
    form: Format
    tools: Tools
    images: ImageForm | None = None
    """Image format for images from tools; None if they cannot show any."""

    def parse(self, tokens: Sequence[int]) -> Turn:
        """Parse what follows a turn; text that names no tool is no call, as in verl."""
        if not self.tools:
            return Turn()
        found = self.form.parse(self._text(tokens), self.tools)
        calls = tuple(
            ToolCall(one.name, one.arguments, id=one.id) for one in found if isinstance(one, Call)
        )
        is_bad = any(isinstance(one, BadCall) for one in found)
        return Turn(calls, self.form.invalid if is_bad and not calls else "")

    def assistant_message(
        self, tokens: Sequence[int], tools: Tools, turn: int, most: int
    ) -> Message:
        """Return a turn, by its number, as a program gets it: its text and at most `most` calls.

        If the format has no ids of calls they are generated.
        """
        text = self._text(tokens)
        found = self.form.parse(text, tools) if tools else ()
        calls = [one for one in found if isinstance(one, Call)][:most]
        if not calls:
            return {"role": "assistant", "content": self.decode_turn(tokens)}
        content = self.form.before_calls(text)
        for token in self.template.text.special.values():
            content = content.replace(token, "")
        written_calls = [
            {
                "id": one.id or f"call_{turn}_{number}",
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for number, one in enumerate(calls)
        ]
        return {"role": "assistant", "content": content, "tool_calls": written_calls}

    def encode_request(
        self, written: Sequence[int], request: ModelRequest, images: bytes = b""
    ) -> list[int]:
        """Return the tokens of a program's request; `images` are those of its messages."""
        ids, count = self._encode_texts(written, request), len(unpacked(images))
        if not count:
            return ids
        if self.images is None or ids.count(self.images.token) != count:
            why = "the chat template does not show each of them once"
            raise self.template.refusal(f"messages with {count} images", why)
        return self.images.expanded(ids, images)

    def _encode_texts(self, written: Sequence[int], request: ModelRequest) -> list[int]:
        """Return the tokens of a request, one for each image."""
        messages, tools = [_without_hashes(one) for one in request.messages], request.tools
        if not messages:
            return []
        if request.begins_context:
            return self._encode_conversation(messages, tools)
        if self.form.answer is not None and all(one["role"] == "tool" for one in messages):
            texts = [one["content"] for one in messages]
            return self.template.text.encode(["", ""], ["".join(map(self.form.answer, texts))])
        found = self.form.parse(self._text(written), tools) if tools else ()
        ids = {one.id for one in found if isinstance(one, Call)}
        own = [
            one if one.get("tool_call_id") in ids else {**one, "tool_call_id": ""}  # a generated id
            for one in messages
        ]
        return self.template.delta(own, tools, written=written)

    def _encode_conversation(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Return the tokens of a context with calls: most templates want objects as arguments."""
        calls = [call["function"] for one in messages for call in one.get("tool_calls", ())]
        for call in calls:
            if any(self.template.text.marks(call["name"] + call["arguments"])):
                raise self.template.refusal(shown(call), "a call holds a control token")
        try:
            return self.template.begun([_with_objects(one) for one in messages], tools)
        except BadChatTemplate:
            if not calls:
                raise
            return self.template.begun(messages, tools)

    def _text(self, tokens: Sequence[int]) -> str:
        """Decode the text of a turn, from which its calls are parsed."""
        return self.chat.decode(tokens, skip_special_tokens=not self.form.keeps_special_tokens)

    def encode_answers(
        self,
        written: Sequence[int],
        calls: Sequence[ToolCall],
        answers: Sequence[str],
        images: Sequence[bytes] = (),
    ) -> list[int]:
        """Return the tokens of the answers, (calls,) texts of the tools, each after its images.

        Some templates also write the name or id of the answered call.
        """
        if self.form.answer is not None:
            # A tool's text never becomes special tokens, not even the tokenizer's own.
            return self.template.text.encode(["", ""], ["".join(map(self.form.answer, answers))])
        shown = [unpacked(held) for held in images] or [[]] * len(calls)
        messages: list[dict[str, Json]] = [
            {
                "role": "tool",
                "name": call.name,
                "tool_call_id": call.id,
                "content": behind_images(answer, len(files)),
            }
            for call, answer, files in zip(calls, answers, shown, strict=True)
        ]
        ids = self.template.delta(messages, self.tools, written=written)
        files = packed([file for files in shown for file in files])
        return ids if self.images is None else self.images.expanded(ids, files)

    def encode_reply(self, written: Sequence[int], reply: str) -> list[int]:
        """Return the tokens of `Turn.reply`."""
        if self.form.answer is not None:
            return self.chat.encode(reply)
        return self.encode_user_message(written, reply)

    def decode_turn(self, written: Sequence[int]) -> str:
        """Decode a turn for the user simulator; without special tokens, as in verl."""
        return self.chat.decode(written, skip_special_tokens=True)

    def encode_user_message(self, written: Sequence[int], text: str) -> list[int]:
        """Return the tokens of a message of the user simulator."""
        user = {"role": "user", "content": text}
        return self.template.delta([user], self.tools, written=written)

    def encode_context(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> list[int]:
        """Return the tokens of a whole new context with these tools; empty for all."""
        named = {tool_name(schema): schema for schema in self.tools}
        chosen = [named[name] for name in tools if name in named] if tools else self.tools
        return self.template.begun(messages, chosen)


def _without_hashes(message: Message) -> Message:
    """Return a message whose images are parts as chat templates take them."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    parts = [{key: value for key, value in one.items() if key != HASH} for one in content]
    return {**message, "content": parts}


def _with_objects(message: Message) -> Message:
    """Return a message whose calls have objects as arguments, where possible."""

    def call(written: Message) -> Message:
        function = written["function"]
        try:
            value = msgspec.json.decode(function["arguments"])
        except msgspec.MsgspecError:
            return written
        if not isinstance(value, dict):
            return written
        return {**written, "function": {**function, "arguments": value}}

    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [call(one) for one in message["tool_calls"]]}
