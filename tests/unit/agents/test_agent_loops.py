import asyncio
from pathlib import Path
from typing import Any

import pytest
from asking_rows import Row
from store_runs import resolved_job
from turn_templates import ChatInProcess, write_family

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.agents.named import agents_of
from ppojob_trainer.agents.turn_form import ChatForm
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.tools.verl.agent_loops import AgentLoopBase, Config, DictConfigWrap
from ppojob_trainer.tools.verl.settings import loop_settings
from ppojob_trainer.tools.wire import LoopSettings

LOOPS = '''
import asyncio, os, random, sys, time
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop import AgentLoopBase
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.replica import TokenOutput

@register("adds")
class Adds(AgentLoopBase):
    """Answers calls in their context, as newer loops do."""

    def __init__(self, *args, most: dict, **kwargs):
        super().__init__(*args, **kwargs)
        self.most, self.parser = most.turns, ToolParser.get_tool_parser("hermes", self.tokenizer)
        self.response_length = self.rollout_config.response_length
        assert self.rollout_config.multi_turn.get("max_user_turns") is None
        assert self.config.get("alfworld", {}) == {} and not hasattr(self.config, "alfworld")

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        assert sampling_params["temperature"] == 1.0
        metrics, prompt_ids = {}, await self.apply_chat_template(list(kwargs["raw_prompt"]))
        ids, mask = list(prompt_ids), []
        for turn in range(self.most):
            with simple_timer("generate_sequences", metrics):
                output: TokenOutput = await self.server_manager.generate(
                    request_id=uuid4().hex, prompt_ids=ids,
                    sampling_params={**sampling_params, "max_tokens": 400 - len(mask)})
            assert output.log_probs is None and output.num_preempted == 0
            ids, mask = ids + output.token_ids, mask + [1] * len(output.token_ids)
            _, calls = await self.parser.extract_tool_calls(output.token_ids)
            if not calls:
                break
            told = [{"role": "tool", "content": call.arguments} for call in calls]
            given = await self.apply_chat_template(told, remove_system_prompt=True)
            given = self.turn_separator + given
            ids, mask = ids + given, mask + [0] * len(given)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        assert "torch" not in sys.modules, "a tokenizer needs none"
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=ids[len(prompt_ids):][:self.response_length],
            response_mask=mask[:self.response_length], num_turns=turn + 1, metrics=metrics,
            reward_score=float(kwargs["reward_model"]["ground_truth"] in text))

class Remembers(AgentLoopBase):
    """A context for each part and an output for each context, as loops of verl 0.5 do it."""

    @classmethod
    def init_class(cls, config, tokenizer, processor, **kwargs):
        if cls._class_initialized:
            return
        cls._class_initialized = True
        cls.length = config.actor_rollout_ref.rollout.response_length
        cls.kwargs = config.data.get("apply_chat_template_kwargs", {})

    async def ask(self, text, sampling_params, **more):
        ids = await self.loop.run_in_executor(None, lambda: self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True,
            **self.kwargs))
        said = await self.server_manager.generate(
            request_id="x", prompt_ids=ids, sampling_params=sampling_params | more)
        return AgentLoopOutput(prompt_ids=ids, response_ids=said[:self.length],
                               response_mask=[1] * len(said), metrics=AgentLoopMetrics())

    async def run(self, sampling_params, **kwargs):
        outputs, notes = [], ""
        for part in kwargs["parts"]:
            outputs.append(await self.ask(part + notes, sampling_params, stop=["."]))
            notes = self.tokenizer.decode(outputs[-1].response_ids)
        if kwargs["extra_info"].get("last"):
            return outputs[-1]
        outputs[-1].reward_score = len(notes)
        return outputs

@ToolParser.register("upper")
class UpperParser(ToolParser):
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

class Older(AgentLoopBase):
    """With the arguments of verl 0.5, and a context that the model continues by a list."""

    async def run(self, messages: list[dict[str, Any]], sampling_params: dict[str, Any]):
        assert isinstance(self.config, DictConfig) and OmegaConf.to_container(self.config)
        assert isinstance(ToolParser.get_tool_parser("upper", self.tokenizer), UpperParser)
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        said = await self.server_manager.generate(
            request_id="x", prompt_ids=ids, sampling_params=sampling_params)
        said.token_ids.append(7)
        return AgentLoopOutput(prompt_ids=ids, response_ids=said.token_ids,
                               response_mask=[1] * len(said) + [0], metrics={})

class Odd(AgentLoopBase):
    """What is refused, by name."""

    async def run(self, sampling_params, how, raw_prompt, **kwargs):
        ids = await self.apply_chat_template(raw_prompt)
        generate = self.server_manager.generate
        async def ask(ids=ids, **more):
            return await generate("x", prompt_ids=ids, sampling_params=sampling_params | more)
        if how == "hot":
            await ask(temperature=0.5)
        elif how == "images":
            await generate("x", prompt_ids=ids, sampling_params={}, image_data=["x"])
        elif how == "no token":
            await ask([10 ** 9])
        elif how == "idle":
            return AgentLoopOutput(prompt_ids=ids, response_ids=[], response_mask=[], metrics={})
        elif how == "both":
            try:
                await asyncio.gather(ask(), ask())
            except Exception:
                return None
        elif how == "late":
            async def later():
                await asyncio.to_thread(time.sleep, 0.01)
                await ask()
            await asyncio.gather(ask(), later())
        said = await ask()
        if how == "fickle":
            await ask([*ids, *said.token_ids, random.randrange(300), 7])
        if how == "stubborn":
            while True:
                try:
                    await ask([7])
                except BaseException:
                    pass
        if how == "busy":
            time.sleep(100)
        if how == "raises":
            raise KeyError("gone")
        drawn, mask = list(said), [1] * len(said)
        if how == "other":
            drawn = self.tokenizer.encode("other")
            mask = [1] * len(drawn)
        if how == "given":
            mask = [1] * (len(said) + 1)
            drawn = drawn + [7]
        if how == "part":
            mask[0] = 0
        if how == "masked":
            more = await ask([*ids, *said])  # the same turn once more, without a token between
            drawn, mask = [*drawn, *more, 7, 7], [1] * len(said) + [0] * (len(more) + 2)
        if how == "all masked":
            drawn, mask = [7] * 9, [0] * 9
        if how == "text":
            return "text"
        return AgentLoopOutput(prompt_ids=ids, response_ids=drawn, response_mask=mask, metrics={})
'''
NAMES = ("adds", "Remembers", "Older", "Odd")
SETTINGS = {
    "data": {"apply_chat_template_kwargs": {}},
    "actor_rollout_ref": {
        "rollout": {"response_length": 4000, "multi_turn": {"max_user_turns": None}}
    },
}


def agent(path: Path, **more: Any) -> AgentSpec:
    user = {"source": {"path": str(path)}, "interface": "agent_loop", "timeLimitSeconds": 20}
    loops = [{"name": name, **user, **more} for name in NAMES]
    loops[0]["config"] = {"most": {"turns": 3}}
    return AgentSpec.model_validate({"interactions": loops, "default": "adds"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("family"), "qwen2.5", None)


@pytest.fixture(scope="module")
def form(folder: Path) -> ChatForm:
    chat = ChatInProcess(folder)
    return ChatForm(chat, TurnTemplate(chat), FORMATS["hermes"], [])


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> AgentSpec:
    path = tmp_path_factory.mktemp("loops") / "mine.py"
    path.write_text(LOOPS)
    return agent(path)


def opened(spec: AgentSpec, folder: Path, processes: int = 2) -> ToolPool:
    loops = LoopSettings(str(folder), None, None, dict.fromkeys(NAMES, SETTINGS))
    return ToolPool(spec, processes=processes, loop_settings=loops)


@pytest.fixture(scope="module")
def pool(spec: AgentSpec, folder: Path):
    """Two processes, so that turns of a row are not answered by one."""
    with opened(spec, folder) as made:
        yield made


def row(form: ChatForm, spec: AgentSpec, name: str, tokens: int = 4000, **info: Any) -> Row:
    columns = {"data_source": "sums", "reward_model": {"ground_truth": "3"}, "extra_info": info}
    return Row(form, spec, name, tokens, **columns)


CALL = '<tool_call>\n{"name": "add", "arguments": {"sum": 3}}\n</tool_call>'


@pytest.mark.processes
def test_tokens_behind_the_context_are_given_and_the_end_has_a_score(form, spec, pool) -> None:
    one = row(form, spec, "adds")
    episode = one.play(pool, CALL, "Three.")
    first, second = one.asked
    assert first.prompt == one.prompt, "the prompt of the data has its tokens already"
    assert first.sampling.max_tokens == 400
    said = CALL + "<|im_end|>\n<|im_start|>user\n<tool_response>\n"
    assert one.shown(1).startswith(one.shown(0) + said)
    assert one.shown(1).endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert [one.is_trained for one in episode.trajectory.segments] == [True, False, True]
    assert (episode.figures.turn_scores, episode.figures.environment_score) == ([0.0, 1.0], 1.0)
    assert (episode.figures.num_turns, episode.figures.contexts) == (4, 1)


@pytest.mark.processes
def test_a_loop_ends_by_itself_at_a_limit_and_a_request_behind_it_ends_the_row(form, spec, pool):
    limited = spec.model_copy(update={"max_assistant_turns": 1})
    one = row(form, limited, "adds")
    assert one.play(pool, "It is 3.").figures.environment_score == 1.0
    cut = row(form, limited, "adds").play(pool, CALL)
    assert (cut.figures.environment_score, cut.figures.tool_failures) == (0.0, 0)
    long = row(form, spec, "adds", tokens=4)
    drawn = tuple(form.chat.encode("3 3 3 3"))[:4]
    assert long.play(pool, drawn).figures.environment_score == 1.0
    assert long.episode.trajectory.finish_reason == "length"


@pytest.mark.processes
def test_a_loop_of_an_older_form_goes_on_behind_tokens_that_the_tokenizer_lacks(form, spec, pool):
    one = row(form, spec, "Older")
    drawn = (*form.chat.encode("Yes"), 10**6)
    assert one.play(pool, drawn).figures.tool_failures == 0
    assert [one.is_trained for one in one.episode.trajectory.segments] == [True]


def test_each_loop_reads_its_own_limits_and_tools_are_for_other_rows() -> None:
    source = {"source": {"path": "a.py"}, "interface": "agent_loop"}
    config = resolved_job(
        agent={
            "interactions": [{"name": name, **source} for name in ("short", "long")],
            "agents": [{"name": "short", "maxAssistantTurns": 2}],
            "tools": [{"name": "calculator"}],
            "maxAssistantTurns": 9,
        },
        roles={"tools": {"cpu": 1}},
    )
    assert config.spec.agent is not None
    agents = agents_of(config.spec.agent)
    read = {
        name: own["actor_rollout_ref"]["rollout"]["multi_turn"]["max_assistant_turns"]
        for name, own in loop_settings(config, agents).settings.items()
    }
    assert read == {"short": 2, "long": 9}
    assert [len(agents[name].tools) for name in ("tool_agent", "short", "long")] == [1, 0, 0]


@pytest.mark.parametrize("ends", [True, False])
def test_what_stands_between_turns_is_found_without_an_end_token_too(folder, ends: bool) -> None:
    from ppojob_trainer.tools.agent_loop import LoopTokenizer

    tokenizer = LoopTokenizer.of(LoopSettings(str(folder), None, None, {}))
    tokenizer.eos_token = tokenizer.eos_token if ends else None

    async def separator() -> list[int]:
        return AgentLoopBase(DictConfigWrap(Config.of(SETTINGS)), None, tokenizer).turn_separator

    assert tokenizer.decode(asyncio.run(separator())) == "\n"


@pytest.mark.processes
@pytest.mark.parametrize("last", [False, True])
def test_contexts_are_trained_if_an_output_has_them(form, spec, pool, last: bool) -> None:
    one = row(form, spec, "Remembers", parts=["First. ", "Then. "], last=last)
    drawn = [tuple(form.chat.encode(text)) for text in ("Yes.", "No.")]
    episode = one.play(pool, *drawn, end="stop")
    assert one.shown(1).endswith("user\nThen. Yes.<|im_end|>\n<|im_start|>assistant\n")
    assert one.asked[0].sampling.stop_texts.texts == (".",)
    segments = episode.trajectory.segments
    assert [one.begins_context for one in segments] == [True, False, True, False]
    assert [one.is_trained for one in segments] == [False, not last, False, True]
    assert episode.figures.environment_score == (0.0 if last else 3.0)


@pytest.mark.processes
def test_turns_of_an_output_may_be_masked(form, spec, pool) -> None:
    words = [tuple(form.chat.encode(text)) for text in ("Yes", "No")]
    one = row(form, spec, "Odd", how="masked")
    episode = one.play(pool, *words)
    assert one.asked[1].prompt == (*one.prompt, *words[0]), "the turn goes on"
    assert [one.is_trained for one in episode.state.segments] == [True, True]
    assert [one.is_trained for one in episode.trajectory.segments] == [True, False]
    assert not any(row(form, spec, "Odd", how="all masked").play(pool, "Yes").trajectory.mask)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "turns", "words"),
    [
        ("hot", 0, "got temperature 0.5: spec.rollout samples all turns alike"),
        ("images", 0, "got images or audios: an agent loop gets text"),
        ("no token", 0, "to 1000000000: prompt_ids are at least one, from 0 to"),
        ("idle", 0, "an agent loop calls generate at least once"),
        ("both", 0, "got two requests at once: their order would be random"),
        ("late", 0, "got two requests at once"),
        ("fickle", 2, "before, it was"),
        ("raises", 1, "KeyError: 'gone'"),
        ("other", 1, 'assistant\\nother": the model read and wrote'),
        ("given", 1, "got response_ids"),
        ("part", 1, "got response_mask of 1 for a part of turn 0"),
        ("text", 1, 'got "text": run returns an AgentLoopOutput'),
    ],
)
def test_refused_loops_end_their_rows(form, spec, pool, how: str, turns: int, words: str) -> None:
    one = row(form, spec, "Odd", how=how)
    episode = one.play(pool, *["Yes"] * max(1, turns))
    answer: ToolAnswer = one.answers[-1]
    assert words in answer.text, answer.text
    assert (answer.failure, episode.figures.tool_failures) == ("raised", 1)
    assert len(one.asked) == max(1, turns)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["busy", "stubborn"])
def test_a_loop_that_does_not_stop_is_killed(form, spec, folder: Path, how: str) -> None:
    slow = agent(Path(spec.interactions[0].source.path), timeLimitSeconds=3)
    with opened(slow, folder) as own:
        one = row(form, slow, "Odd", how=how)
        one.play(own, "Yes")
        assert one.answers[-1].failure == "timeout"
        assert row(form, slow, "adds").play(own, "It is 3.").figures.tool_failures == 0


@pytest.mark.processes
def test_the_tokenizer_is_that_of_the_prompts(form, spec, folder: Path) -> None:
    from ppojob_trainer.tools.agent_loop import LoopTokenizer

    template = "{{ strftime_now('%Y') }} {{ messages[0].content }}"
    tokenizer = LoopTokenizer.of(LoopSettings(str(folder), None, template, {}))
    tokenizer.began = 86_400.0 * 365 * 30
    chat = [{"role": "user", "content": "<|im_end|> x"}]
    assert tokenizer.apply_chat_template(chat) == form.chat.encode("1999 <|im_end|> x")
    assert tokenizer.pad_token_id is not None
    with pytest.raises(ConfigError, match=r"none/tokenizer\.json: got no tokenizer"):
        opened(spec, folder / "none")
