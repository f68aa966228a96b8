"""Chat tokenizer: chat messages and text to token ids and back, without torch or transformers."""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer

from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.media.picture_forms import read_form, why_shown_none
from ppojob_trainer.data.media.pictures import pictures_in
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages, TemplateRenderer
from ppojob_trainer.data.tokenizer_files import read_tokenizer_files
from ppojob_trainer.json_value import Json

_OURS = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
)
_PROBE = "ppojobProbeq"
Tools = Sequence[Mapping[str, Json]]
"""Tool schemas, in OpenAI's form, as a template gets them in its variable ``tools``."""


class TemplateInputs(NamedTuple):
    """What a template gets besides the messages: variables, and tool schemas."""

    variables: Mapping[str, Json]
    tools: Tools


class ChatTokenizer(Closeable):
    """A model's tokenizer and chat template.

    Ids equal those of transformers' ``apply_chat_template(..., add_generation_prompt=open_turn)``:
    rendered text is tokenised as it is, so control tokens in it become control tokens and nothing
    is added. Templates run in a child process with limits on time and memory
    (``template_renderer``); it starts at the first chat and ends with ``close``.

    Args:
        model_folder: model in Hugging Face form.
        tokenizer_path: folder of the tokenizer; None for the model's.
        chat_template: a chat template, or a file with one; None for the tokenizer's own.
        setting: field of the resource that can name another template, for messages.
        began: the time of a template's ``strftime_now`` in UTC, in unix seconds: the start of the
            run. With any other, a run that is resumed on another day or machine would see other
            prompts. None for the time of this call.
        tools: tool schemas for the model's prompts.
        blind: says why rows of a data source have no pictures; empty where they may.

    Attributes:
        eos_token_ids: tokens that end a response: the tokenizer's, then generation_config.json's.
        pad_token_id: padding of the model; None where its config.json has none.
        pictures: how the model takes pictures; None where it sees none.

    Raises:
        ConfigError: files are missing or damaged.
    """

    def __init__(
        self,
        model_folder: str | Path,
        tokenizer_path: str | Path | None = None,
        chat_template: str | None = None,
        *,
        setting: str = "spec.model.chatTemplate",
        began: float | None = None,
        tools: Tools = (),
        blind: Callable[[str], str] = lambda _: "",
    ) -> None:
        model = Path(model_folder)
        files = read_tokenizer_files(
            model,
            model if tokenizer_path is None else Path(tokenizer_path),
            chat_template,
            setting,
        )
        self._files = files
        self._setting = setting
        self.tools = tools
        self._renderer: TemplateRenderer | None = None
        self._parts: bool | None = None
        if files.chat_template is not None:
            self._renderer = TemplateRenderer(
                files.chat_template, files.template_file, time.time() if began is None else began
            )
        self.eos_token_ids = files.end_token_ids
        self.pad_token_id = files.pad_token_id
        self.pictures, self.blind = read_form(model), blind
        self.why_shown_none = why_shown_none(model)

    @property
    def digest(self) -> str:
        """Return the SHA-256, in hex, of everything that decides which ids a text gets."""
        told: list[object] = [self.source, dict(self._files.special_tokens)]
        told += [self._files.chat_template, *([self.tools] if self.tools else [])]
        told += [self.pictures] if self.pictures else []
        body = msgspec.json.encode(told, order="sorted")
        return hashlib.sha256(body).hexdigest()

    @property
    def source(self) -> str:
        """Return the tokenizer as tokenizer.json has it, with what the configuration adds."""
        text: str = self._files.tokenizer.to_str()
        return text

    @property
    def has_template(self) -> bool:
        """Whether chat messages can become text at all."""
        return self._files.chat_template is not None

    @property
    def added_tokens(self) -> dict[int, AddedToken]:
        """Tokens that no text is merged into, by id; most are special."""
        return dict(self._files.tokenizer.get_added_tokens_decoder())

    @property
    def template(self) -> tuple[str, str]:
        """Return the chat template, empty if there is none, and where it is from."""
        return self._files.chat_template or "", self._files.template_file

    def without_tokens(self, texts: Collection[str]) -> Tokenizer:
        """Return the tokenizer with these added tokens treated as ordinary text."""
        body = msgspec.json.decode(self.source)
        body["added_tokens"] = [one for one in body["added_tokens"] if one["content"] not in texts]
        return Tokenizer.from_str(msgspec.json.encode(body).decode())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token, added ones too; ids may have gaps."""
        found: dict[str, int] = self._files.tokenizer.get_vocab(with_added_tokens=True)
        return found

    @property
    def largest_token_id(self) -> int:
        """Return the largest id that a text can get, -1 if there is none."""
        return max(self.vocabulary.values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Tokenise text as it is; no token is put before or after it."""
        ids: list[int] = self._files.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        text: str = self._files.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def encode_marked(self, text: str, start: int) -> tuple[list[int], list[bool]]:
        """Return the token ids of a text, and which of them contain text from a character on."""
        encoding = self._files.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [end > start for _, end in encoding.offsets]

    def encode_chats(
        self,
        conversations: Sequence[Messages],
        variables: Mapping[str, Json] | None = None,
        *,
        tools: Tools | None = None,
        open_turn: bool = True,
    ) -> list[list[int] | BadChatTemplate]:
        """Tokenise several conversations; one that the template refuses gives the reason.

        Args:
            conversations: their messages have "role" and "content".
            variables: what the template sees besides, such as ``enable_thinking``.
            tools: schemas of what the model may call.
            open_turn: end with the header of the assistant's next turn.

        Raises:
            BadChatTemplate: what concerns all of them: the template is missing, wrong or too slow.
            JobFailed: its process cannot start, or is killed repeatedly by something else.
        """
        return self._encoded(
            self.render_chats(conversations, variables, tools=tools, open_turn=open_turn)
        )

    def render_chats(
        self,
        conversations: Sequence[Messages],
        variables: Mapping[str, Json] | None = None,
        *,
        tools: Tools | None = None,
        open_turn: bool = True,
    ) -> list[str | BadChatTemplate]:
        """Render the texts that `encode_chats` tokenises."""
        given = variables or {}
        taken = sorted(_OURS & given.keys())
        if taken:
            raise BadChatTemplate(
                f"spec.data.applyChatTemplateKwargs: got {', '.join(taken)}: set by the trainer "
                "itself; other variables of the template"
            )
        variables = {**self._files.special_tokens, **given}
        if tools:
            variables["tools"] = [dict(tool) for tool in tools]
        if self._renderer is None:
            raise BadChatTemplate(
                f"{self._files.template_file}: got no chat template: prompts are chat messages; "
                f"a model with a chat template, {self._setting}, or prompts that are text"
            )
        if self._wants_parts():
            conversations = [_in_parts(messages) for messages in conversations]
        texts = self._renderer.render(conversations, variables, open_turn=open_turn)
        form = self.pictures
        if form is None:
            return texts
        return [
            form.rewritten(text) if isinstance(text, str) and pictures_in(messages) else text
            for text, messages in zip(texts, conversations, strict=True)
        ]

    def encode_prompts(
        self,
        prompts: Sequence[str | Messages],
        told: Sequence[TemplateInputs] | None = None,
    ) -> list[list[int] | BadChatTemplate]:
        """Tokenise prompts of both kinds: text as it is, messages by `encode_chats`.

        Each shows the template what it is ``told``, (prompts,); without that, the constructor's
        tools.
        """
        told = [TemplateInputs({}, self.tools)] * len(prompts) if told is None else told
        rendered: dict[int, str | BadChatTemplate] = {}
        alike: dict[object, dict[int, Messages]] = {}
        for at, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                rendered[at] = prompt
            else:
                variables, tools = told[at]
                key = msgspec.json.encode(variables), tuple(map(id, tools))
                alike.setdefault(key, {})[at] = prompt
        for chats in alike.values():
            variables, tools = told[next(iter(chats))]
            texts = self.render_chats([*chats.values()], variables, tools=tools)
            rendered |= zip(chats, texts, strict=True)
        return self._encoded([rendered[at] for at in range(len(prompts))])

    def _encoded(
        self, rendered: Sequence[str | BadChatTemplate]
    ) -> list[list[int] | BadChatTemplate]:
        texts = [outcome if isinstance(outcome, str) else "" for outcome in rendered]
        encodings = self._files.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [
            encoding.ids if isinstance(outcome, str) else outcome
            for outcome, encoding in zip(rendered, encodings, strict=True)
        ]

    def _wants_parts(self) -> bool:
        """Whether the template shows a user's content as parts only.

        Those of SmolVLM skip plain texts, so the model would read empty messages.
        """
        if self._parts is None:
            assert self._renderer is not None, "who asks has a template"
            asked: list[Messages] = [[{"role": "user", "content": _PROBE}]]
            asked.append(_in_parts(asked[0]))
            told = self._renderer.render(asked, self._files.special_tokens, open_turn=False)
            as_text, as_part = (isinstance(one, str) and _PROBE in one for one in told)
            self._parts = as_part and not as_text
        return self._parts

    def tell_time(self, began: float) -> None:
        """Set the time that templates see from now on, in unix seconds."""
        if self._renderer is not None:
            self._renderer.tell_time(began)

    def close(self) -> None:
        """End the child. The tokenizer can still be used; a new child starts when needed."""
        if self._renderer is not None:
            self._renderer.close()


def _in_parts(messages: Messages) -> Messages:
    """The same messages with each text as the one part of its message."""

    def content(of: Mapping[str, Json]) -> Json:
        said = of["content"]
        return [{"type": "text", "text": said}] if isinstance(said, str) else said

    return [{**message, "content": content(message)} for message in messages]


def up_to_padding(ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """A text up to the token that a reward model scores: the last that is no padding.

    As in transformers, also where padding is an end token of the template.
    """
    end = len(ids)
    while end > 1 and ids[end - 1] == pad_token_id:
        end -= 1
    return list(ids[:end])


def tool_name(tool: Mapping[str, Json]) -> str:
    """The name in a schema of OpenAI's form."""
    function = tool["function"]
    assert isinstance(function, dict), "OpenAI's form"
    return str(function["name"])
