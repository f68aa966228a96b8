"""verl's agent loop: a user's class whose `run` asks the model for the tokens behind its tokens.

Like a program (`ppojob_trainer.tools.program`) it runs again for each turn, and its requests are
answered with the model's earlier turns, in order. The first one without an answer ends the run: it
is cancelled, and is the input of the model's next turn. In a conversation with an agent loop the
messages behind the prompt have only tokens: ``{"ids": [...]}``.
"""

import asyncio
import datetime
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from ppojob_api.problem import shown
from ppojob_trainer.data.tokenizer_files import read_tokenizer_files
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult, read_number
from ppojob_trainer.tools.loop import texts_around, without_name
from ppojob_trainer.tools.program import changed
from ppojob_trainer.tools.verl.agent_loops import (
    Config,
    DictConfigWrap,
    TokenOutput,
    ToolListWrap,
)
from ppojob_trainer.tools.wire import Conversation, LoopEnded, LoopSettings, ModelRequest

_TOGETHER_SECONDS: Final = 0.05
"""Time limit for a second concurrent request, if the loop has other tasks."""
_IGNORED: Final = frozenset(
    {"logprobs", "include_stop_str_in_output", "skip_special_tokens", "detokenize"}
)
"""Sampling parameters that change no token of a turn."""
_Marked = list[tuple[int, int | None]]
"""Tokens, with the number of the turn that wrote each; None for given tokens."""


class LoopTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """The model's tokenizer, which gives the tokens of a chat as a list, like transformers 4."""

    began = 0.0  # current time of chat templates, in unix seconds
    largest_id = 0  # of its vocabulary, which may have gaps

    def apply_chat_template(self, *args: Any, return_dict: bool = False, **more: Any) -> Any:
        now = datetime.datetime.fromtimestamp(self.began, datetime.UTC)
        told = {"strftime_now": now.strftime, **more}
        return super().apply_chat_template(*args, return_dict=return_dict, **told)

    @classmethod
    def of(cls, settings: LoopSettings) -> "LoopTokenizer":
        """Read the tokenizer of the policy; ConfigError if files are missing or damaged."""
        files = read_tokenizer_files(
            Path(settings.model), Path(settings.tokenizer or settings.model), settings.chat_template
        )
        names = dict(files.special_tokens)
        if "eos_token" in names:
            names.setdefault("pad_token", names["eos_token"])  # as in verl
        template = files.chat_template
        made = cls(tokenizer_object=files.tokenizer, chat_template=template, **names)
        made.largest_id = max(made.get_vocab().values())  # once: it copies the vocabulary
        return made


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """A user simulator that is an agent loop."""

    tokenizer: LoopTokenizer
    settings: Mapping[str, Json]  # of the job, by verl's names
    kind: Callable[..., Any]
    config: Mapping[str, Json]  # further arguments of the constructor

    async def __call__(
        self, conversation: Conversation, columns: dict[str, Json], _row: str
    ) -> ModelRequest | LoopEnded:
        """Return its next request after its answered ones, or its end.

        Raises what it raises, or BadResult if it sends another request than before, or two at once,
        or trains on other tokens than those of the model.
        """
        self.tokenizer.began = conversation.began
        run = _Run(conversation, self.tokenizer)
        prompt = conversation.messages[: conversation.prompt]
        sampling = {**conversation.sampling, "logprobs": False}
        loop, row = self._made(run), _row_of(columns, prompt)
        if "messages" in inspect.signature(loop.run).parameters:  # verl 0.5
            row = {"messages": list(prompt)}
        work = asyncio.ensure_future(loop.run(sampling_params=sampling, **row))
        run.tasks |= {work, asyncio.current_task()}
        await asyncio.wait({work, run.stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not run.stopped.done():
            return run.end(work.result())
        work.cancel()
        await asyncio.wait({work})
        _ = work.cancelled() or work.exception()  # what its cleanup raises does not count
        request: ModelRequest = run.stopped.result()
        return request

    def _made(self, run: "_Run") -> Any:
        """Construct it; versions of verl differ in the arguments."""
        config = Config.of(self.settings)
        given = {
            "trainer_config": DictConfigWrap(config),
            "server_manager": run,
            "tokenizer": self.tokenizer,
            "processor": None,
            "dataset_cls": None,
            "dataset_config": DictConfigWrap(config.data),
            "data_config": DictConfigWrap(config.data),
        }
        parameters = inspect.signature(self.kind).parameters
        if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
            given = {name: one for name, one in given.items() if name in parameters}
        rare = {"config": config, "tools": ToolListWrap([])}
        given |= {name: one for name, one in rare.items() if name in parameters}
        return self.kind(**given, **Config.of(self.config))


class _Run:
    """One run of an agent loop, for which it is the server manager of verl."""

    def __init__(self, conversation: Conversation, tokenizer: LoopTokenizer) -> None:
        self._conversation = conversation
        self._tokenizer = tokenizer
        self._answered = self._open = 0
        self._context = list(conversation.ids)  # what the model has read and written in it
        self.stopped = asyncio.get_running_loop().create_future()  # the next request, or BadResult
        self.tasks = set[Any]()

    async def generate(
        self,
        request_id: object = None,
        prompt_ids: Sequence[int] = (),
        sampling_params: Mapping[str, Any] | None = None,
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        **_more: Any,
    ) -> TokenOutput:
        """Return the model's turn behind these tokens; it ends the run if there is none yet."""
        if self.stopped.done():
            raise asyncio.CancelledError
        self._open += 1
        try:
            if self._open > 1:
                why = "their order would be random; an agent loop sends one after the other"
                raise BadResult("BadAnswer", "two requests at once", why)
            await asyncio.sleep(0)  # a second one may come
            if image_data or video_data or audio_data:
                raise BadResult("BadAnswer", "images or audios", "an agent loop gets text")
            request = self._read(list(map(int, prompt_ids)), sampling_params or {})
            if self._answered < len(self._conversation.user_turns):
                return self._answer(request)
            if asyncio.all_tasks() - self.tasks - {asyncio.current_task()}:
                await asyncio.sleep(_TOGETHER_SECONDS)
            self.stopped.set_result(request)
        except BadResult as bad:
            if not self.stopped.done():
                self.stopped.set_exception(bad)
        finally:
            self._open -= 1
        await asyncio.Event().wait()  # until the run is cancelled
        raise AssertionError

    def end(self, output: Any) -> LoopEnded:
        """Return the end of the run; BadResult if it is too early, or of other tokens."""
        if self._answered < len(self._conversation.user_turns):
            raise changed("its end", "it was another request")
        if not self._answered:
            raise BadResult("BadAnswer", "its end", "an agent loop calls generate at least once")
        outputs = output if isinstance(output, list) else [output]
        contexts = self._contexts()
        trained = {turn for one in outputs for turn in self._trained(one, contexts)}
        scores = [one.reward_score for one in outputs if one.reward_score is not None]
        told = [read_number(one, "reward_score is a number") for one in scores]
        masked = [turn for turn in range(self._answered) if turn not in trained]
        return LoopEnded(told[-1] if told else 0.0, masked)

    def _read(self, ids: list[int], params: Mapping[str, Any]) -> ModelRequest:
        """Return a request, which continues the context or begins a new one."""
        limit, stop = self._read_sampling(params)
        size = len(self._context)
        continues = ids[:size] == self._context
        if not self._answered:  # the prompt of the data is tokenised already
            continues &= len(ids) == size
        given = ids[size:] if continues else ids
        # Not what the model wrote, which may have more tokens than the tokenizer.
        most = self._tokenizer.largest_id
        if not ids or any(not 0 <= one <= most for one in set(given) - set(self._context)):
            got = f"tokens from {min(given)} to {max(given)}" if ids else "no token"
            raise BadResult("BadAnswer", got, f"prompt_ids are at least one, from 0 to {most}")
        messages = [{"ids": given}] if given else []
        return ModelRequest(messages, not continues, max_tokens=limit, stop=stop)

    def _answer(self, request: ModelRequest) -> TokenOutput:
        """Return the recorded answer to the next request, which must be the one of before."""
        conversation = self._conversation
        before = conversation.user_turns[self._answered]
        end = before.start + before.messages
        asked = [
            (*(() if begins else self._context), *_ids(messages))
            for begins, messages in (
                (request.begins_context, request.messages),
                (before.begins_context, conversation.messages[before.start : end]),
            )
        ]
        if asked[0] != asked[1]:
            got, was = self._around(*asked)
            raise changed(f"prompt_ids {got}", f"it was {was}")
        for name in ("max_tokens", "stop"):
            now, was = getattr(request, name), getattr(before, name)
            if now != was:
                raise changed(f"{name} {shown(now)}", f"it was {shown(was)}")
        drawn = conversation.messages[end]["ids"]
        self._context = [*asked[1], *drawn]
        self._answered += 1
        return TokenOutput(drawn, stop_reason="completed", num_preempted=0)

    def _read_sampling(self, params: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Return the limit of the turn, and its stop strings."""
        limit, stop, job = 0, list[str](), {**self._conversation.sampling, "n": 1}
        for name, value in params.items():
            if name in ("max_tokens", "max_new_tokens") and value is not None:
                limit = int(value)
                if limit < 1:
                    why = "no token is left for the turn; end the loop instead"
                    raise BadResult("BadAnswer", f"{name} {limit}", why)
            elif name == "stop" and isinstance(value, str | list):
                stop = [value] if isinstance(value, str) else list(map(str, value))
            elif (value or name in job) and name not in _IGNORED and job.get(name) != value:
                why = "spec.rollout samples all turns alike; only max_tokens and stop may differ"
                raise BadResult("BadAnswer", f"{name} {shown(value)}", why)
        return limit, stop

    def _contexts(self) -> list[_Marked]:
        conversation = self._conversation
        starts = {one.start for one in conversation.user_turns if one.begins_context}
        ends = (one.start + one.messages for one in conversation.user_turns)
        drawn = {end: number for number, end in enumerate(ends)}
        found: list[_Marked] = [[(one, None) for one in conversation.ids]]
        for at in range(conversation.prompt, len(conversation.messages)):
            if at in starts:
                found.append([])
            found[-1] += [(one, drawn.get(at)) for one in conversation.messages[at]["ids"]]
        return found

    def _trained(self, output: Any, contexts: list[_Marked]) -> Iterable[int]:
        """Return the turns that an output trains, those of the context that it equals."""
        if any(not hasattr(output, name) for name in ("response_mask", "reward_score")):
            raise BadResult("BadAnswer", shown(output), "run returns an AgentLoopOutput")
        if any((getattr(output, "multi_modal_data", None) or {}).values()):
            raise BadResult("BadAnswer", "multi_modal_data", "an agent loop gets text")
        ids, mask = [*output.prompt_ids, *output.response_ids], list(output.response_mask)
        if len(mask) != len(output.response_ids):
            got = f"{len(mask)} of response_mask for {len(output.response_ids)} of response_ids"
            raise BadResult("BadAnswer", got, "one for each token")
        mask = [0] * (len(ids) - len(mask)) + mask
        size = max((at + 1 for at, one in enumerate(mask) if one), default=0)
        if not size:
            return ()
        equal = [one for one in contexts if [id_ for id_, _ in one[:size]] == ids[:size]]
        if not equal:
            got, drawn = self._around(ids, self._context)
            why = f"the model read and wrote {drawn}; tokens as given to generate and returned"
            raise BadResult("BadAnswer", f"response_ids {got}", why)
        contexts.remove(equal[0])
        contexts.append(equal[0])  # an equal output finds another one
        marks: dict[int | None, set[bool]] = {}
        for (id_, turn), own, is_trained in zip(equal[0], ids, mask, strict=False):
            if id_ != own:
                break  # what follows the last trained token is free
            marks.setdefault(turn, set()).add(bool(is_trained))
        for turn, found in marks.items():
            if found == {True, False} if turn is not None else True in found:
                what = "given tokens" if turn is None else f"a part of turn {turn}"
                why = "1 is for tokens that generate returned, for all of a turn or none"
                raise BadResult("BadAnswer", f"response_mask of 1 for {what}", why)
        return [turn for turn, found in marks.items() if turn is not None and True in found]

    def _around(self, now: Sequence[int], before: Sequence[int]) -> list[str]:
        """Return the texts around the first difference, or tokens if the texts are equal."""
        texts = [self._tokenizer.decode(list(ids)) for ids in (now, before)]
        return texts_around(*(texts if texts[0] != texts[1] else (list(now), list(before))))


def _ids(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [one for message in messages for one in message["ids"]]


def _row_of(columns: dict[str, Json], prompt: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a row by verl's names; entries of extra_info are also there by their own."""
    info = columns["extra_info"]
    assert isinstance(info, dict), "it is an object"
    named = {name: info.get(name) or {} for name in ("tools_kwargs", "interaction_kwargs")}
    own = {**info, **named, "index": info.get("index", 0), **without_name(columns)}
    own.pop("sampling_params", None)  # an argument of its own
    return {**own, "raw_prompt": list(prompt)}
