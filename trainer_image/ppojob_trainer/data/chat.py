"""Chat tokenizer: token ids of chat messages and text, without torch or transformers."""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer

from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.media.image_forms import read_form, why_no_media
from ppojob_trainer.data.media.images import images_in
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages, TemplateRenderer
from ppojob_trainer.data.tokenizer_files import read_tokenizer_files
from ppojob_trainer.json_value import Json

_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
)
_PROBE = "ppojobProbeq"
Tools = Sequence[Mapping[str, Json]]
"""Tool schemas in OpenAI's form, as in the template variable ``tools``."""


class TemplateInputs(NamedTuple):
    """Inputs of a chat template besides the messages."""

    variables: Mapping[str, Json]
    tools: Tools


class ChatTokenizer(Closeable):
    """A model's tokenizer and chat template.

    Ids equal those of transformers' ``apply_chat_template(..., add_generation_prompt=open_turn)``:
    rendered text is tokenised unchanged, so the text of a special token becomes that token.
    Templates run in a child process with limits on time and memory (``template_renderer``), which
    starts at the first chat and ends with ``close``. Raises ConfigError if files are missing or
    damaged.

    Args:
        tokenizer_path: folder of the tokenizer; None for the model's.
        chat_template: a chat template, or a file with one; None for the tokenizer's own.
        setting: field of the resource that can name another template, for error messages.
        began: time of a template's ``strftime_now`` in UTC, in Unix seconds: the start of the run.
            Otherwise a run that is resumed on another day would have other prompts. None for now.
        why_no_images: data source -> why its rows cannot have images; empty if they can.

    Attributes:
        eos_token_ids: tokens that end a response: the tokenizer's, then generation_config.json's.
        pad_token_id: padding token in the model's config.json; None without one.
        images: media format of the model; None for text only.
        why_no_media: why a model with a tower gets no images or audios; else empty.
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
        why_no_images: Callable[[str], str] = lambda _: "",
    ) -> None:
        model = Path(model_folder)
        folder = model if tokenizer_path is None else Path(tokenizer_path)
        self._files = files = read_tokenizer_files(model, folder, chat_template, setting)
        self._setting = setting
        self.tools = tools
        self._renderer: TemplateRenderer | None = None
        self.began = time.time() if began is None else began
        self._parts: bool | None = None
        if files.chat_template is not None:
            self._renderer = TemplateRenderer(files.chat_template, files.template_file, self.began)
        self.eos_token_ids = files.end_token_ids
        self.pad_token_id = files.pad_token_id
        self.images, self.why_no_media = read_form(model), why_no_media(model)
        self.why_no_images = why_no_images

    @property
    def digest(self) -> str:
        """Return the SHA-256, in hex, of everything that determines the ids of a text."""
        inputs: list[object] = [self.source, dict(self._files.special_tokens)]
        inputs += [self._files.chat_template, *([self.tools] if self.tools else [])]
        inputs += [self.images] if self.images else []
        body = msgspec.json.encode(inputs, order="sorted")
        return hashlib.sha256(body).hexdigest()

    @property
    def source(self) -> str:
        """Return the tokenizer as tokenizer.json has it, with what the configuration adds."""
        text: str = self._files.tokenizer.to_str()
        return text

    @property
    def has_template(self) -> bool:
        return self._files.chat_template is not None

    @property
    def added_tokens(self) -> dict[int, AddedToken]:
        """Return the added tokens by id; most are special tokens."""
        return dict(self._files.tokenizer.get_added_tokens_decoder())

    @property
    def template(self) -> tuple[str, str]:
        """Return the chat template, empty without one, and its source."""
        return self._files.chat_template or "", self._files.template_file

    def without_tokens(self, texts: Collection[str]) -> Tokenizer:
        """Return the tokenizer with these added tokens treated as ordinary text."""
        body = msgspec.json.decode(self.source)
        body["added_tokens"] = [one for one in body["added_tokens"] if one["content"] not in texts]
        return Tokenizer.from_str(msgspec.json.encode(body).decode())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token, added tokens included; ids may have gaps."""
        found: dict[str, int] = self._files.tokenizer.get_vocab(with_added_tokens=True)
        return found

    @property
    def largest_token_id(self) -> int:
        """Return the largest token id, -1 for an empty vocabulary."""
        return max(self.vocabulary.values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Tokenise text, without a token before or after it."""
        ids: list[int] = self._files.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._files.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def encode_marked(self, text: str, start: int) -> tuple[list[int], list[bool]]:
        """Return (tokens,) ids of a text, and whether each extends beyond character `start`."""
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
        """Tokenise several conversations, messages with "role" and "content".

        `variables` are further ones of the template, such as ``enable_thinking``, and `tools` the
        schemas of tools. With `open_turn` the header of the next assistant turn is the end. Returns
        the ids of each conversation, or the error if the template refuses it. Raises
        BadChatTemplate if the template is missing, invalid or too slow.
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
        if reserved := sorted(_RESERVED & given.keys()):
            raise BadChatTemplate(
                f"spec.data.applyChatTemplateKwargs: got {', '.join(reserved)}: set by the trainer "
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
        if self._needs_parts():
            conversations = [_in_parts(messages) for messages in conversations]
        texts = self._renderer.render(conversations, variables, open_turn=open_turn)
        form = self.images
        if form is None:
            return texts
        return [
            form.rewritten(text) if isinstance(text, str) and images_in(messages) else text
            for text, messages in zip(texts, conversations, strict=True)
        ]

    def encode_prompts(
        self,
        prompts: Sequence[str | Messages],
        inputs: Sequence[TemplateInputs] | None = None,
    ) -> list[list[int] | BadChatTemplate]:
        """Tokenise prompts of both kinds: text unchanged, messages by `encode_chats`.

        `inputs`, (prompts,), are those of the template for each; by default the constructor's
        tools.
        """
        if inputs is None:
            inputs = [TemplateInputs({}, self.tools)] * len(prompts)
        rendered: dict[int, str | BadChatTemplate] = {}
        groups: dict[object, dict[int, Messages]] = {}
        for at, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                rendered[at] = prompt
            else:
                variables, tools = inputs[at]
                key = msgspec.json.encode(variables), tuple(map(id, tools))
                groups.setdefault(key, {})[at] = prompt
        for chats in groups.values():
            variables, tools = inputs[next(iter(chats))]
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

    def _needs_parts(self) -> bool:
        """Whether the template shows a user's content only as parts.

        SmolVLM's templates skip plain texts: the model would read empty messages.
        """
        if self._parts is None:
            assert self._renderer is not None, "the caller has checked that there is a template"
            chats: list[Messages] = [[{"role": "user", "content": _PROBE}]]
            chats.append(_in_parts(chats[0]))
            found = self._renderer.render(chats, self._files.special_tokens, open_turn=False)
            as_text, as_part = (isinstance(one, str) and _PROBE in one for one in found)
            self._parts = as_part and not as_text
        return self._parts

    def set_time(self, began: float) -> None:
        """Set the time of the template's ``strftime_now``, in Unix seconds."""
        self.began = began
        if self._renderer is not None:
            self._renderer.set_time(began)

    def close(self) -> None:
        """End the child process; it is started again when needed."""
        if self._renderer is not None:
            self._renderer.close()


def _in_parts(messages: Messages) -> Messages:
    """Return the messages with each text as a list of one part."""
    contents = [message["content"] for message in messages]
    return [
        {**message, "content": [{"type": "text", "text": one}] if isinstance(one, str) else one}
        for message, one in zip(messages, contents, strict=True)
    ]


def up_to_padding(ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """Strip the padding at the end, also if padding is an end token of the template.

    A reward model scores the last token that remains, as in transformers.
    """
    end = len(ids)
    while end > 1 and ids[end - 1] == pad_token_id:
        end -= 1
    return list(ids[:end])


def tool_name(tool: Mapping[str, Json]) -> str:
    """Return the name of a tool from its schema."""
    function = tool["function"]
    assert isinstance(function, dict), "OpenAI's form"
    return str(function["name"])
