"""What docs/data-and-rewards.md shows works: its rows are read, its function scores them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from bad_specs import changed_job
from prompt_files import PromptFiles, good_row
from ruamel.yaml import YAML

from ppojob_api import shape, validation
from ppojob_api.v1alpha1.data import DataSpec, SamplerSpec
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.pod_settings import PodSettings
from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.row_sampler import RowSampler
from ppojob_trainer.data.score_history import RowHistory, columns
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem, RewardResult
from ppojob_trainer.rewards.row_checks import row_checks
from ppojob_trainer.sandbox.executor import Sandbox

PAGE = (Path(__file__).parents[3] / "docs" / "data-and-rewards.md").read_text()
_FOUND: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
ROWS, _SEEN, _MOVES, _AUDIOS, ANSWERED, *_ = (
    text for language, text in _FOUND if language == "json"
)
_YAML = [YAML(typ="safe").load(text) for language, text in _FOUND if language == "yaml"]
SETTINGS = [section["data"] for section in _YAML if "data" in section]
CUSTOM, MOUNTED, VOTE, JUDGE, ASKING = (
    section["rewards"] for section in _YAML if "rewards" in section
)
(SERVED,) = (section for section in _YAML if "judge" in section)
(KEY,) = (section["pods"] for section in _YAML if "pods" in section)
CUTS, PROGRAM, CHOOSES, REWARD, BATCH_REWARD, GROUP_REWARD, OF_TRL, _ASKS = (
    text for language, text in _FOUND if language == "python"
)
SHAPES = [text for language, text in _FOUND if language == "jsonl"]


def reward(folder: Path, text: str, settings: dict[str, object]) -> list[RewardSpec]:
    (folder / "reward.py").write_text(text)
    source = {"path": str(folder / "reward.py")}
    return [RewardSpec.model_validate(settings | {"source": source})]


@pytest.mark.processes
@pytest.mark.parametrize("form", ["lines", "array", "parquet"])
def test_rows_of_each_shape_are_read(form: str, files: PromptFiles) -> None:
    def written(text: str) -> Path:
        rows = [json.loads(row) for row in text.splitlines()]
        if form == "parquet":
            return files.table("a.parquet", *rows)
        return files.raw("a.json", (text if form == "lines" else json.dumps(rows)).encode())

    rewards = row_checks(reward(files.folder, REWARD, CUSTOM[0]))
    spec = files.spec(written(ROWS))
    report = check_files(spec, files.chat, rewards=rewards, draw=("promptsPerStep", 2))
    assert (report.errors, report.warnings, report.train_rows) == ([], [], 2)
    assert len(SHAPES) == 3
    for settings, text in zip(SETTINGS, SHAPES, strict=False):
        row = json.loads(text)
        with files.open(written(text), **settings) as dataset:
            found = dataset[0]
        assert found.data_source == settings["dataSource"]
        assert found.ground_truth == row.get("answer")
        assert found.extra_info == ({"level": 1} if "level" in row else {})
        chat = [{"role": "user", "content": "What is 3 + 9?"}]
        assert found.prompt == row.get("text", chat)


@pytest.mark.processes
def test_the_conversation_is_learnt(files: PromptFiles) -> None:
    talks, pairs, among, beside = SETTINGS[7:]
    settings = {key: value for key, value in talks.items() if key != "train"}
    path = files.raw("talks.jsonl", ANSWERED.encode())
    assert files.report(path, given="sft", **settings).train_rows == 1
    assert among.keys() == {"train", "guidanceKey"}
    assert beside.keys() == {"train", "demonstrations", "demonstrationPromptKey"}
    assert pairs.keys() == {"train", "promptKey", "answerKey"}


@pytest.mark.processes
def test_the_answer_of_a_conversation_is_cut_off(files: PromptFiles) -> None:
    talks = {**json.loads(ANSWERED), "answer": "13"}
    path = files.raw("talks.jsonl", json.dumps(talks).encode())
    cuts = {"path": str(files.raw("cuts.py", CUTS.encode())), "arguments": {"path": str(path)}}
    with files.open(train=[cuts], **SETTINGS[1]) as dataset:
        assert dataset[0].prompt == talks["messages"][:-1]


@pytest.mark.processes
def test_the_program_makes_its_rows(files: PromptFiles) -> None:
    path = files.raw("sums.py", PROGRAM.encode())
    ((entry,), _) = SETTINGS[3].values()
    spec = files.spec(train=[entry | {"path": str(path)}])
    report = check_files(spec, files.chat, rewards=None, draw=("promptsPerStep", 2))
    assert (report.errors, report.train_rows) == ([], 4000)


@pytest.mark.processes
def test_the_sampler_chooses(files: PromptFiles, tmp_path: Path) -> None:
    sampler = SETTINGS[6]["sampler"]
    file = tmp_path / sampler["source"]["path"]
    file.write_text(CHOOSES)
    spec = SamplerSpec.model_validate(sampler | {"source": {"path": str(file)}})
    rows = [good_row(f"{n} + 5", str(n + 5), extra_info={"level": n}) for n in range(4)]
    with files.open(files.lines("a.jsonl", *rows)) as dataset, RowSampler(spec, dataset) as chooses:
        told = columns(
            {"3": RowHistory(2, 2, 1, 1.0, 1.0), "1": RowHistory(1, 1, 1, 1.0, 1.0)},
            np.full(4, 0.5),
        )
        assert chooses.choose(3, 0, 3, told, "null") == ([2, 1, 0], "null")


def scored(rewards: list[RewardSpec], *responses: str) -> list[RewardResult]:
    items = [RewardItem(n, "my/sums", text, "12", {}) for n, text in enumerate(responses)]
    with ScoringPool(rewards) as pool:
        return pool.score(items)


@pytest.mark.processes
def test_the_functions_score(tmp_path: Path) -> None:
    rewards = reward(tmp_path, REWARD, CUSTOM[0])
    results = scored(rewards, "3 + 9 = 12.", "It is 13", "It is -12", "No idea")
    assert [result.score for result in results] == [1.0, 1.0, 0.1, 0.0]
    assert [result.extras["acc"] for result in results] == [1.0, 0.0, 0.0, 0.0]
    assert [result.extras["numbers"] for result in results] == [3.0, 1.0, 1.0, 0.0]
    of_many = reward(tmp_path, BATCH_REWARD, {"function": "score"})
    assert [result.score for result in scored(of_many, "= 12", "no")] == [1.0, 0.0]
    of_prompt = reward(tmp_path, GROUP_REWARD, {"function": "score"})
    assert [result.score for result in scored(of_prompt, "= 12", "no")] == [0.0, 0.5]
    (tmp_path / "trl_rewards.py").write_text(
        "def accuracy_reward(completions, answer, **kwargs):\n"
        "    texts = [messages[0]['content'] for messages in completions]\n"
        "    return [float(a in t) if t else None for a, t in zip(answer, texts)]\n"
    )
    of_trl = reward(tmp_path, OF_TRL, {"function": "score"})
    assert [result.score for result in scored(of_trl, "= 12", "no", "")] == [1.0, 0.0, 0.0]
    vote = [RewardSpec.model_validate(VOTE[0])]
    found = scored(vote, r"\boxed{12}", r"\boxed{12}", r"\boxed{13}")
    assert [result.score for result in found] == [1.0, 1.0, 0.0]


def test_settings_are_what_they_are_said_to_be() -> None:
    assert DataSpec.model_validate(SETTINGS[4]).curriculum is not None
    assert DataSpec.model_validate(SETTINGS[5]).sampler == SamplerSpec(function="uncertain")
    source = RewardSpec.model_validate(MOUNTED[0]).source
    assert source is not None
    assert source.file == "/ppojob/code/rewards/sums.py"
    judge = RewardSpec.model_validate(JUDGE[0])
    (pods,) = KEY
    assert PodSettings.model_validate(pods).env[0].name == judge.arguments["key_variable"]
    assert load_scorer(judge.function, judge.arguments | {"key_variable": ""}, Sandbox)


def test_fields_that_are_named_exist() -> None:
    fields = {path.replace("[]", "") for path in shape.all_paths()}
    named = re.findall(r"`(spec\.[\w.\[\]]+)`", PAGE)
    assert {name.replace("[]", "") for name in named} <= fields


def test_a_judge_that_the_job_serves_is_a_valid_one() -> None:
    job = changed_job([f"spec.{name}: {json.dumps(section)}" for name, section in SERVED.items()])
    judged = validation.validate(job)
    assert isinstance(judged, PPOJob), judged
    assert judged.spec.rewards == tuple(map(RewardSpec.model_validate, ASKING))
