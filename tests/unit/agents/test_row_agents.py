"""Rows that ask for an agent or a user that the job has not: lines of bad_row_agents.txt."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden_lines import assert_lines, read_lines
from prompt_files import CHATML, good_row
from tiny_models import save_tokenizer

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.well_known import BUILT_IN_AGENTS
from ppojob_trainer.agents.named import agents_of, row_agents
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.tools.row_calls import RowCalls, call_problem, row_calls
from ppojob_trainer.tools.schemas import tool_schemas

pytestmark = pytest.mark.processes
EXPECTED = read_lines(Path(__file__).parent / "bad_row_agents.txt")
AGENT = {"interactions": [{"name": "gsm8k"}, {"name": "mine", "source": {"path": "a.py"}}]}
GOOD = {"interaction_kwargs": {"name": "gsm8k", "ground_truth": "8"}}
ROWS = {
    "no interaction_kwargs": {},
    "no name": {"interaction_kwargs": {"ground_truth": "8"}},
    "an unknown name": {"interaction_kwargs": {"name": "gsm"}},
    "a name that is none": {"interaction_kwargs": {"name": 7}},
    "no truth": {"interaction_kwargs": {"name": "gsm8k"}},
    "a truth that is none": {"interaction_kwargs": {"name": "gsm8k", "ground_truth": 8}},
}

CALLED = {  # the user, and the arguments of its rows
    "an argument that is missing": ("solve", ({"mode": "a"}, {"answer": "7"}, {"mode": "b"})),
    "an argument too many": ("solve", ({"answer": "7"}, {"answer": "7", "level": 1})),
    "an argument of the other caller": ("solve", ({"answer": "7", "messages": []},)),
    "an argument of a class": ("Guide", ({"answer": "7", "level": 1}, {})),
}

AGENTS = {"an agent of no job": "my_agent", "an agent without its tool": "search_r1", "a number": 7}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatTokenizer]:
    folder = tmp_path_factory.mktemp("chat")
    save_tokenizer(folder, template=CHATML)
    with ChatTokenizer(folder, folder) as chat:
        yield chat


def errors(
    folder: Path,
    chat: ChatTokenizer,
    agent: dict[str, object],
    *infos: object,
    calls: RowCalls | None = None,
    **columns: object,
) -> list[str]:
    rows = [good_row(f"{number} + 1", extra_info=info) for number, info in enumerate(infos)]
    rows[-1] |= columns
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = DataSpec.model_validate({"train": [{"path": str(path)}]})
    agents = row_agents(AgentSpec.model_validate(agent), calls)
    report = check_files(spec, chat, rewards=None, agents=agents, draw=("promptsPerStep", 1))
    return [line.replace(f"{folder}/", "") for line in report.errors]


@pytest.mark.parametrize("case", [*ROWS, *AGENTS])
def test_rows_that_nobody_answers(case: str, tmp_path: Path, chat: ChatTokenizer) -> None:
    columns = {"agent_name": AGENTS[case]} if case in AGENTS else {}
    found = errors(tmp_path, chat, AGENT, GOOD, ROWS.get(case, GOOD), **columns)
    assert_lines(found, EXPECTED[case])


def solve(messages, answer, mode="ok"):
    """A program, and beside it a class."""


class Guide:
    def start_interaction(self, instance_id, answer, **_):
        pass

    def generate_response(self, instance_id, messages, **_):
        pass


@pytest.mark.parametrize("case", CALLED)
def test_rows_with_which_their_users_cannot_be_called(case, tmp_path: Path, chat) -> None:
    kind, infos = CALLED[case]
    rows = [{"interaction_kwargs": {"name": "mine", **one}} for one in infos]
    calls = {"mine": row_calls({"solve": solve, "Guide": Guide}[kind])}
    found = errors(tmp_path, chat, AGENT, GOOD, *rows, calls=calls)
    assert_lines(found, EXPECTED[case])


def test_of_decorated_and_built_in_functions_no_more_is_asked_than_they_take() -> None:
    @functools.wraps(solve)
    def logged(*given, **named):
        return solve(*given, **named)

    class Static:
        @staticmethod
        def start_interaction(instance_id, answer, **_):
            pass

        @classmethod
        def generate_response(cls, instance_id, messages, **_):
            pass

    assert call_problem(row_calls(logged), {}) is None
    assert call_problem(row_calls(Static), {"answer": "7"}) is None
    assert row_calls(max) == []


def test_rows_of_users_and_of_jobs_without(tmp_path: Path, chat: ChatTokenizer) -> None:
    own = {"interaction_kwargs": {"name": "mine"}}
    assert errors(tmp_path, chat, AGENT, GOOD, own) == []
    assert errors(tmp_path, chat, {"tools": [{"name": "calculator"}]}, GOOD, {}) == []


def test_rows_name_agent_loops_as_agents(tmp_path: Path, chat: ChatTokenizer) -> None:
    loop = {"name": "loop", "interface": "agent_loop", "source": {"path": "a.py"}}
    agent = {"interactions": [*AGENT["interactions"], loop], "maxUserTurns": 4}
    assert errors(tmp_path, chat, agent, GOOD, {}, agent_name="loop") == []
    (found,) = errors(tmp_path, chat, agent, {"interaction_kwargs": {"name": "loop"}})
    assert found.endswith("no interaction of spec.agent has this name; one of gsm8k, mine")
    agent["agents"] = [{"name": "loop", "maxAssistantTurns": 3}]
    named = agents_of(AgentSpec.model_validate(agent))
    assert [one.name for one in named["loop"].interactions] == ["loop"]
    assert (named["loop"].max_assistant_turns, named["loop"].max_user_turns) == (3, 4)
    assert [one.name for one in named["tool_agent"].interactions] == ["gsm8k", "mine"]


def test_a_row_selects_from_the_tools_of_its_agent(tmp_path: Path, chat: ChatTokenizer) -> None:
    asked = {"tool_selection": ["search"]}
    agent = {
        "tools": [{"name": "calculator"}, {"name": "search", "config": {"index": "a"}}],
        "agents": [{"name": "sums", "tools": ["calculator"]}],
    }
    assert errors(tmp_path, chat, agent, asked) == []
    (found,) = errors(tmp_path, chat, agent, asked, agent_name="sums")
    assert 'tool_selection: got "search": the row\'s agent has no such tool' in found
    assert errors(tmp_path, chat, agent, asked, agent_name="single_turn_agent") == []


CALLS = {
    "tools": [{"name": "calculator"}, {"name": "search", "config": {"index": "a"}}],
    "interactions": [{"name": "gsm8k"}],
    "format": "qwen3_coder",
    "maxAssistantTurns": 5,
    "maxUserTurns": 4,
    "turnTokens": 9,
    "agents": [
        {"name": "sums", "tools": ["calculator"], "maxUserTurns": 2},
        {"name": "react_agent", "tools": [], "format": "hermes"},
    ],
}


def test_what_each_agent_is():
    def told(one: AgentSpec) -> tuple[object, ...]:
        tools = [tool.name for tool in one.tools]
        limits = (one.max_assistant_turns, one.max_user_turns, one.turn_tokens)
        return tools, bool(one.interactions), one.format, *limits

    named = {name: told(one) for name, one in agents_of(AgentSpec.model_validate(CALLS)).items()}
    assert named == {
        "tool_agent": (["calculator", "search"], True, "qwen3_coder", 5, 4, 9),
        "single_turn_agent": ([], False, "hermes", 1, 4, None),
        "search_r1": (["search"], False, "search_r1", 5, 4, 9),
        "sums": (["calculator"], True, "qwen3_coder", 5, 2, 9),
        "react_agent": ([], True, "hermes", 5, 4, 9),
    }
    assert sorted(agents_of(AgentSpec.model_validate({"tools": CALLS["tools"]}))) == list(
        BUILT_IN_AGENTS
    )


def test_agents_without_users_need_nobody_and_prompts_show_the_tools_of_their_agent(tmp_path: Path):
    save_tokenizer(tmp_path, template="{{ tools | length if tools else 'none' }}" + CHATML)
    names = ["single_turn_agent", "tool_agent", None, "single_turn_agent", "sums"]
    told = [{}, GOOD, GOOD, {}, GOOD]
    rows = [
        good_row(f"{number} + 1", extra_info=info, agent_name=name)
        for number, (name, info) in enumerate(zip(names, told, strict=True))
    ]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    spec = DataSpec.model_validate({"train": [{"path": str(path)}]})
    agent = AgentSpec.model_validate(CALLS)
    with ChatTokenizer(tmp_path, tmp_path, tools=tool_schemas(agent)) as chat:
        opened = PromptDataset.open(spec, chat, agents=row_agents(agent))
        with opened as dataset:
            prompts = [dataset[number] for number in range(len(dataset))]
        texts = [chat.decode(one.token_ids, skip_special_tokens=False) for one in prompts]
    assert [one.agent for one in prompts] == [name or "tool_agent" for name in names]
    assert [text.partition("<")[0] for text in texts] == ["none", "2", "2", "none", "1"]
