"""Chat messages and text to token ids and back, without torch or transformers."""

import datetime
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.closing import Closing
from ppojob_trainer.data.template_wire import (
    CompileTemplate,
    RenderChats,
    Rendered,
    TemplateRequest,
)
from ppojob_trainer.data.tokenizer_files import read_tokenizer_files
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

Messages = Sequence[Mapping[str, Json]]

RENDER_SECONDS = 10.0
"""Time for one call of the child: a batch of conversations takes milliseconds."""
START_SECONDS = 60.0
TEMPLATE_MEMORY_BYTES = 512 * 1024 * 1024
_OURS = frozenset({"messages", "add_generation_prompt", "continue_final_message", "tokenize"})


class BadChatTemplate(ConfigError):  # noqa: N818  the name in messages
    """The template is missing, wrong, takes too long, or refuses the messages."""


class ChatTokenizer(Closing):
    """A model's tokenizer and chat template.

    Ids equal those of transformers' ``apply_chat_template(..., add_generation_prompt=open_turn)``:
    rendered text is tokenised as it is, so control tokens in it become control tokens and nothing
    is added. Templates run in a child process with limits on time and memory
    (``template_child``); it starts at the first chat and ends with ``close``.

    Args:
        model_folder: model in Hugging Face form.
        tokenizer_path: folder of the tokenizer; None for the model's.
        chat_template: file of a chat template; None for the tokenizer's own.
        setting: field of the resource that can name another template, for messages.
        now: what a template's ``strftime_now`` tells; None for the time of this call. Give the
            time at which the job began where a resumed run must see the same prompts.

    Attributes:
        eos_token_ids: tokens that end a response: the tokenizer's, then generation_config.json's.
        vocab_size: number of tokens, added ones included.

    Raises:
        ConfigError: files are missing or damaged.
    """

    def __init__(
        self,
        model_folder: str | Path,
        tokenizer_path: str | Path | None = None,
        chat_template: str | Path | None = None,
        *,
        setting: str = "spec.model.chatTemplate",
        now: datetime.datetime | None = None,
    ) -> None:
        model = Path(model_folder)
        files = read_tokenizer_files(
            model,
            model if tokenizer_path is None else Path(tokenizer_path),
            None if chat_template is None else Path(chat_template),
        )
        self._files = files
        self._setting = setting
        self._now = now or datetime.datetime.now()
        self._child: BoundedProcess | None = None
        self.eos_token_ids = files.end_token_ids
        self.vocab_size: int = files.tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of all that decides which ids a text gets."""
        told = [self._files.tokenizer.to_str(), dict(self._files.special_tokens)]
        body = msgspec.json.encode([*told, self._files.chat_template], order="sorted")
        return hashlib.sha256(body).hexdigest()

    @property
    def has_template(self) -> bool:
        """Whether chat messages can become text at all."""
        return self._files.chat_template is not None

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts of all special tokens of the vocabulary."""
        added = self._files.tokenizer.get_added_tokens_decoder()
        return tuple(token.content for token in added.values() if token.special)

    @property
    def largest_token_id(self) -> int:
        """The largest id that a text can get, -1 where there is none; ids may leave gaps."""
        vocabulary = self._files.tokenizer.get_vocab(with_added_tokens=True)
        return max(vocabulary.values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Tokenise text as it is; no token is put before or after it."""
        ids: list[int] = self._files.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        text: str = self._files.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def encode_chat(self, messages: Messages, **variables: Json) -> list[int]:
        """Tokenise a conversation and the header of the assistant's next turn.

        Args:
            messages: mappings with "role" and "content".
            variables: what the template sees besides, such as ``enable_thinking``.

        Raises:
            BadChatTemplate: the template is missing, wrong, too slow, or refuses the messages.
        """
        (outcome,) = self.encode_chats([messages], variables)
        if isinstance(outcome, BadChatTemplate):
            raise outcome
        return outcome

    def encode_chats(
        self,
        conversations: Sequence[Messages],
        variables: Mapping[str, Json] | None = None,
        *,
        open_turn: bool = True,
    ) -> list[list[int] | BadChatTemplate]:
        """Tokenise several conversations; in place of one that the template refuses, why.

        Args:
            conversations: each as for `encode_chat`.
            variables: what the template sees besides.
            open_turn: end with the header of the assistant's next turn.

        Raises:
            BadChatTemplate: what concerns all of them: the template is missing, wrong or too slow.
        """
        given = variables or {}
        taken = sorted(_OURS & given.keys())
        if taken:
            raise BadChatTemplate(
                f"spec.data.applyChatTemplateKwargs: got {', '.join(taken)}: set by the trainer "
                "itself; other variables of the template"
            )
        request = RenderChats(
            [[dict(message) for message in messages] for messages in conversations],
            {**self._files.special_tokens, **given},
            open_turn,
        )
        rendered = self._call(request, RENDER_SECONDS)
        texts = [outcome.text for outcome in rendered]
        encodings = self._files.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [
            self._error(outcome) if outcome.refusal else encoding.ids
            for outcome, encoding in zip(rendered, encodings, strict=True)
        ]

    def encode_prompts(
        self, prompts: Sequence[str | Messages], variables: Mapping[str, Json] | None = None
    ) -> list[list[int] | BadChatTemplate]:
        """Tokenise prompts of both kinds: text as it is, messages by the template.

        Raises:
            BadChatTemplate: as ``encode_chats``.
        """
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        chats = [prompt for prompt in prompts if not isinstance(prompt, str)]
        encodings = self._files.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        of_texts = iter([encoding.ids for encoding in encodings])
        of_chats = iter(self.encode_chats(chats, variables) if chats else [])
        return [next(of_texts if isinstance(prompt, str) else of_chats) for prompt in prompts]

    def close(self) -> None:
        """End the child. The tokenizer can still be used; a new child starts when needed."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _start(self) -> BoundedProcess:
        source = self._files.chat_template
        if source is None:
            raise BadChatTemplate(
                f"{self._files.template_file}: got no chat template: prompts are chat messages; "
                f"a model with a chat template, {self._setting}, or prompts that are text"
            )
        return BoundedProcess(
            "ppojob_trainer.data.template_child",
            memory_bytes=TEMPLATE_MEMORY_BYTES,
            log=logging.getLogger(__name__),
        )

    def _call(self, request: RenderChats, seconds: float) -> list[Rendered]:
        if self._child is None or not self._child.is_alive:
            child = self._start()
            try:
                self._compile(child)
            except BaseException:
                child.kill()
                raise
            self._child = child
        return self._exchange(self._child, request, seconds)

    def _compile(self, child: BoundedProcess) -> None:
        # A template that is known to be harmless tells a slow machine from a slow template.
        self._exchange(child, CompileTemplate("", self._now.isoformat()), START_SECONDS)
        source = self._files.chat_template or ""
        compile_own = CompileTemplate(source, self._now.isoformat())
        (outcome,) = self._exchange(child, compile_own, RENDER_SECONDS)
        if outcome.refusal:
            raise self._error(outcome)

    def _exchange(
        self, child: BoundedProcess, request: TemplateRequest, seconds: float
    ) -> list[Rendered]:
        file = self._files.template_file
        try:
            answer = child.call(msgspec.msgpack.encode(request), seconds)
        except ChildTimeout:
            raise BadChatTemplate(
                f"{file}: got no text after {seconds:g} s: the chat template does not end in time; "
                "a template without long loops"
            ) from None
        except ChildDied as death:
            raise BadChatTemplate(
                f"{file}: got no text: the process that renders the chat template {death}; "
                f"a template that needs at most {TEMPLATE_MEMORY_BYTES >> 20} MiB"
            ) from None
        return msgspec.msgpack.decode(answer, type=list[Rendered])

    def _error(self, outcome: Rendered) -> BadChatTemplate:
        line = "" if outcome.line is None else f":{outcome.line}"
        reason = printable(" ".join(outcome.refusal.split()))[:300]
        return BadChatTemplate(
            f"{self._files.template_file}{line}: got {reason!r} from the chat template: it "
            "refuses these messages or is wrong; messages in the order the template wants, or "
            "another template"
        )
