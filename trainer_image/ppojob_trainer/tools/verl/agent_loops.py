"""Stand-ins for what users' agent loops import of verl, in pods without verl."""

import asyncio
import contextlib
import functools
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict

REGISTERED: Final[dict[str, type]] = {}
"""Classes by the name that they were registered with."""


class Config(dict[str, Any]):
    """Settings that are read as OmegaConf's: by attribute, by key and by `get`."""

    @classmethod
    def of(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return cls({key: cls.of(one) for key, one in value.items()})
        return [cls.of(one) for one in value] if isinstance(value, list | tuple) else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            why = "PPOJob has no such setting of verl; `config` of the interaction for your own"
            raise AttributeError(f"{name}: {why}") from None


class OmegaConf:
    """The functions of OmegaConf that read settings, which are plain values here."""

    create = Config.of

    @staticmethod
    def to_container(config: Any, **_options: Any) -> Any:
        return config


class DictConfigWrap:
    """Settings as an argument of a constructor."""

    def __init__(self, config: Any) -> None:
        self.config = config


class ToolListWrap:
    """Tools as an argument of a constructor; the agent loop brings its own."""

    def __init__(self, tools: list[Any]) -> None:
        self.tools = tools


class TokenOutput(list[int]):
    """A turn of the model; also the list of its tokens, as older versions return it."""

    def __init__(
        self,
        token_ids: list[int],
        log_probs: list[float] | None = None,
        routed_experts: Any = None,
        stop_reason: str | None = None,
        num_preempted: int | None = None,
        extra_fields: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(token_ids)
        self.token_ids = list(token_ids)
        self.log_probs = log_probs
        self.routed_experts = routed_experts
        self.stop_reason = stop_reason
        self.num_preempted = num_preempted
        self.extra_fields = extra_fields or {}


class AgentLoopMetrics(BaseModel):
    """Times of a row, which are measured here without it."""

    model_config = ConfigDict(extra="allow")
    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    """What `run` returns."""

    model_config = ConfigDict(extra="allow")
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}


class AgentLoopBase:
    """An agent loop: constructed and run for each row, and again for each of its turns."""

    _class_initialized = False
    enable_continuous_token = False  # an option of verl 0.9

    def __init__(
        self,
        trainer_config: DictConfigWrap,
        server_manager: Any,
        tokenizer: Any,
        processor: Any = None,
        dataset_cls: Any = None,
        dataset_config: DictConfigWrap | None = None,
        data_config: DictConfigWrap | None = None,
        **more: Any,
    ) -> None:
        self.config = trainer_config.config
        self.init_class(config=self.config, tokenizer=tokenizer, processor=processor, **more)
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.dataset_cls = dataset_cls
        self.dataset_config = self.data_config = self.config.data
        self.apply_chat_template_kwargs = self.config.data.apply_chat_template_kwargs
        self.loop = get_event_loop()

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any, **_more: Any) -> None:
        """Prepare the class; overridden by loops of verl before 0.7."""
        cls._class_initialized = True

    @functools.cached_property
    def system_prompt(self) -> list[int]:
        """The tokens that the template writes before the first message."""
        return initialize_system_prompt(self.tokenizer, **self.apply_chat_template_kwargs)

    @functools.cached_property
    def turn_separator(self) -> list[int]:
        """The tokens that the template writes behind the end token of a turn."""
        variables = self.apply_chat_template_kwargs
        one, other = (
            _templated(self.tokenizer, [{"role": "user", "content": text}], **variables)
            for text in ("", "x")
        )
        pairs = zip(reversed(one), reversed(other), strict=False)
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        tail = one[len(one) - alike :]
        ends = [at for at, token in enumerate(tail) if token == self.tokenizer.eos_token_id]
        return tail[(ends[-1] if ends else 0) + 1 :]  # without the token that ends the turn

    async def process_vision_info(self, _messages: list[Any]) -> dict[str, Any]:
        return {}

    process_multi_modal_info = process_vision_info

    def _get_mm_processor_kwargs(self, *_: Any, **_more: Any) -> dict[str, Any]:
        return {}

    async def apply_chat_template(
        self,
        messages: list[Any],
        tools: list[Any] | None = None,
        images: Any = None,
        videos: Any = None,
        audios: Any = None,
        *,
        remove_system_prompt: bool = False,
        **_more: Any,
    ) -> list[int]:
        """Return the tokens of messages and of the header of the model's turn."""
        if images or videos or audios:
            raise ValueError("got images, videos or audios: an agent loop gets text in PPOJob")
        told = {"tools": tools or None, **self.apply_chat_template_kwargs}
        ids = _templated(self.tokenizer, messages, add_generation_prompt=True, **told)
        return ids[len(self.system_prompt) :] if remove_system_prompt else ids

    async def run(self, sampling_params: dict[str, Any], **_row: Any) -> Any:
        """Return an `AgentLoopOutput` or a list of them; subclasses must override it."""
        raise NotImplementedError(f"{type(self).__name__} has no run")


class FunctionCall(BaseModel):
    """A call of a tool, with its arguments as JSON."""

    name: str
    arguments: str


class HermesToolParser:
    """Finds the calls of a turn in the format `hermes`."""

    stop_token_ids: tuple[int, ...] = ()

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def extract_tool_calls(
        self, responses_ids: list[int], _tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        """Return the text beside the calls, and the calls that are JSON."""
        text, calls = self.tokenizer.decode(responses_ids), []
        for written in (pattern := re.compile(r"(?s)<tool_call>(.*?)</tool_call>")).findall(text):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                call = json.loads(written)
                arguments = json.dumps(call["arguments"], ensure_ascii=False)
                calls.append(FunctionCall(name=call["name"], arguments=arguments))
        return pattern.sub("", text), calls


class ToolParser(HermesToolParser):
    """verl's registry of formats, with `hermes` and those of users."""

    _registry: ClassVar[dict[str, Callable[..., Any]]] = {"hermes": HermesToolParser}

    @classmethod
    def register(cls, name: str) -> Callable[[type], type]:
        """Register a class of a user's own."""

        def decorated(kind: type) -> type:
            cls._registry[name] = kind
            return kind

        return decorated

    @classmethod
    def get_tool_parser(cls, name: str, tokenizer: Any) -> Any:
        if name not in cls._registry:
            raise ValueError(f"tool parser: got {name}: PPOJob has hermes here; register your own")
        return cls._registry[name](tokenizer)


def register(agent_name: str) -> Callable[[type], type]:
    """Register a class by a name."""

    def decorated(kind: type) -> type:
        REGISTERED[agent_name] = kind
        return kind

    return decorated


def get_event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all rows."""
    return asyncio.get_event_loop()


def initialize_system_prompt(tokenizer: Any, **variables: Any) -> list[int]:
    """Return the tokens that the template writes before the first message."""
    user = {"role": "user", "content": ""}
    one, two = (_templated(tokenizer, [user] * count, **variables) for count in (1, 2))
    return one[: 2 * len(one) - len(two)]


@contextlib.contextmanager
def simple_timer(name: str, timings: dict[str, float]) -> Iterator[None]:
    """Add the seconds of a block to a dictionary."""
    began = time.perf_counter()
    yield
    timings[name] = timings.get(name, 0.0) + time.perf_counter() - began


def _templated(tokenizer: Any, messages: list[Any], **variables: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, **{"tokenize": True, **variables})
    return ids


_NAMES: Final[dict[str, Any]] = {
    **{one.__name__: one for one in (AgentLoopBase, AgentLoopMetrics, AgentLoopOutput)},
    **{one.__name__: one for one in (DictConfigWrap, ToolListWrap, TokenOutput)},
    **{one.__name__: one for one in (get_event_loop, register, simple_timer)},
    "AsyncLLMServerManager": object,  # for annotations; the server manager is an argument
    "LLMServerClient": object,
}
MODULES: Final[dict[str, dict[str, Any]]] = {
    "omegaconf": {"DictConfig": Config, "ListConfig": list, "OmegaConf": OmegaConf},
    "verl.experimental": {},
    "verl.experimental.agent_loop": _NAMES,
    "verl.experimental.agent_loop.agent_loop": _NAMES,
    "verl.experimental.agent_loop.tool_parser": {
        "FunctionCall": FunctionCall,
        "HermesToolParser": HermesToolParser,
        "ToolParser": ToolParser,
    },
    "verl.utils.chat_template": {"initialize_system_prompt": initialize_system_prompt},
    "verl.utils.profiler": {"simple_timer": simple_timer},
    "verl.utils.tokenizer": {},
    "verl.utils.tokenizer.chat_template": {"initialize_system_prompt": initialize_system_prompt},
    "verl.utils.ray_utils": {"get_event_loop": get_event_loop},
    "verl.workers": {},
    "verl.workers.rollout": {},
    "verl.workers.rollout.llm_server": {"LLMServerClient": object},
    "verl.workers.rollout.replica": {"TokenOutput": TokenOutput},
}
"""Contents of each module."""
