"""Rows that ask for a user whom the job has not, word for word in bad_row_agents.txt."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_lines import assert_lines, read_lines
from prompt_files import CHATML, good_row
from tiny_models import save_tokenizer

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.agents.row_agents import row_agents
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files

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


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatTokenizer]:
    folder = tmp_path_factory.mktemp("chat")
    save_tokenizer(folder, template=CHATML)
    with ChatTokenizer(folder, folder) as chat:
        yield chat


def errors(folder: Path, chat: ChatTokenizer, agent: dict[str, object], *infos: object):
    rows = [good_row(f"{number} + 1", extra_info=info) for number, info in enumerate(infos)]
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = DataSpec.model_validate({"train": [{"path": str(path)}]})
    agents = row_agents(AgentSpec.model_validate(agent))
    report = check_files(spec, chat, rewards=None, agents=agents, draw=("promptsPerStep", 1))
    return [line.replace(f"{folder}/", "") for line in report.errors]


@pytest.mark.parametrize("case", EXPECTED)
def test_rows_that_nobody_answers(case: str, tmp_path: Path, chat: ChatTokenizer) -> None:
    assert_lines(errors(tmp_path, chat, AGENT, GOOD, ROWS[case]), EXPECTED[case])


def test_rows_of_users_and_of_jobs_without(tmp_path: Path, chat: ChatTokenizer) -> None:
    own = {"interaction_kwargs": {"name": "mine"}}
    assert errors(tmp_path, chat, AGENT, GOOD, own) == []
    assert errors(tmp_path, chat, {"tools": [{"name": "calculator"}]}, GOOD, {}) == []


def test_every_case_is_there() -> None:
    assert set(EXPECTED) == set(ROWS)
