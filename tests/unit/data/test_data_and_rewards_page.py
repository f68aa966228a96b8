"""What docs/data-and-rewards.md shows works: its rows are read, its function scores them."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from ppojob_api import shape
from ppojob_api.v1alpha1.pod_settings import PodSettings
from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem
from ppojob_trainer.rewards.row_checks import row_checks
from ppojob_trainer.sandbox.executor import Sandbox

PAGE = (Path(__file__).parents[3] / "docs" / "data-and-rewards.md").read_text()
_FOUND: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
BLOCKS = dict(reversed(_FOUND))  # the first of each language
_YAML = [YAML(typ="safe").load(text) for language, text in _FOUND if language == "yaml"]
SETTINGS = [section["data"] for section in _YAML if "data" in section]
CUSTOM, MOUNTED, JUDGE = (section["rewards"] for section in _YAML if "rewards" in section)
(KEY,) = (section["pods"] for section in _YAML if "pods" in section)
PROGRAM, REWARD, BATCH_REWARD = (text for language, text in _FOUND if language == "python")
SHAPES = [text for language, text in _FOUND if language == "jsonl"]


def rewards(folder: Path) -> list[RewardSpec]:
    path = folder / "sums.py"
    path.write_text(REWARD)
    (settings,) = CUSTOM
    return [RewardSpec.model_validate(settings | {"source": {"path": str(path)}})]


@pytest.mark.processes
def test_rows_are_read_as_json_lines_and_as_parquet(tmp_path: Path, chat: ChatTokenizer) -> None:
    lines, table = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    lines.write_text(BLOCKS["json"])
    pq.write_table(
        pa.Table.from_pylist([json.loads(row) for row in BLOCKS["json"].splitlines()]), table
    )
    for path in (lines, table):
        checks = row_checks(rewards(tmp_path))
        spec = DataSpec.model_validate({"train": [{"path": str(path)}]})
        report = check_files(spec, chat, rewards=checks, draw=("promptsPerStep", 2))
        assert (report.errors, report.warnings, report.train_rows) == ([], [], 2)


@pytest.mark.processes
@pytest.mark.parametrize("form", ["lines", "array", "parquet"])
def test_a_row_of_each_shape_is_read(form: str, tmp_path: Path, chat: ChatTokenizer) -> None:
    assert len(SHAPES) == 3
    for number, (settings, text) in enumerate(zip(SETTINGS, SHAPES, strict=False)):
        rows = [json.loads(row) for row in text.splitlines()]
        path = tmp_path / f"{number}.{'parquet' if form == 'parquet' else 'json'}"
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text(text if form == "lines" else json.dumps(rows, indent=2))
        spec = DataSpec.model_validate({"train": [{"path": str(path)}], **settings})
        with PromptDataset.open(spec.train, spec, chat) as dataset:
            (row,) = rows
            found = dataset[0]
            assert found.data_source == settings["dataSource"]
            assert found.ground_truth == row.get("answer")
            assert found.extra_info == ({"level": 1} if "level" in row else {})
            if "text" in row:
                assert found.prompt == row["text"]
            else:
                assert found.prompt == [{"role": "user", "content": "What is 3 + 9?"}]


@pytest.mark.processes
def test_the_program_makes_its_rows(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = tmp_path / "sums.py"
    path.write_text(PROGRAM)
    ((entry,), _) = SETTINGS[3].values()
    spec = DataSpec.model_validate({"train": [entry | {"path": str(path)}]})
    report = check_files(spec, chat, rewards=None, draw=("promptsPerStep", 2))
    assert (report.errors, report.train_rows) == ([], 4000)


def test_the_order_that_it_shows_is_one() -> None:
    assert DataSpec.model_validate(SETTINGS[4]).curriculum is not None


@pytest.mark.processes
def test_the_function_scores(tmp_path: Path) -> None:
    responses = ["3 + 9 = 12.", "It is 13", "It is -12", "No idea"]
    items = [RewardItem(n, "my/sums", text, "12", {}) for n, text in enumerate(responses)]
    with ScoringPool(rewards(tmp_path)) as pool:
        results = pool.score(items)
    assert [result.score for result in results] == [1.0, 1.0, 0.1, 0.0]
    assert [result.extras["acc"] for result in results] == [1.0, 0.0, 0.0, 0.0]
    assert [result.extras["numbers"] for result in results] == [3.0, 1.0, 1.0, 0.0]


@pytest.mark.processes
def test_the_function_of_many_responses_scores(tmp_path: Path) -> None:
    code = BATCH_REWARD
    (tmp_path / "ends.py").write_text(code)
    settings = {"function": "score", "source": {"path": str(tmp_path / "ends.py")}}
    items = [RewardItem(n, "my/sums", text, "12", {}) for n, text in enumerate(("= 12", "no"))]
    with ScoringPool([RewardSpec.model_validate(settings)]) as pool:
        assert [result.score for result in pool.score(items)] == [1.0, 0.0]


def test_a_function_may_be_that_of_a_config_map() -> None:
    (one,) = MOUNTED
    source = RewardSpec.model_validate(one).source
    assert source is not None
    assert source.file == "/ppojob/code/rewards/sums.py"


def test_the_judge_has_a_scorers_arguments() -> None:
    (settings,) = JUDGE
    one = RewardSpec.model_validate(settings)
    (pods,) = KEY
    assert PodSettings.model_validate(pods).env[0].name == one.arguments["key_variable"]
    arguments = one.arguments | {"key_variable": ""}
    assert load_scorer(one.function, arguments, Sandbox)


def test_fields_that_are_named_exist() -> None:
    fields = {path.replace("[]", "") for path in shape.all_paths()}
    named = re.findall(r"`(spec\.[\w.\[\]]+)`", PAGE)
    assert {name.replace("[]", "") for name in named} <= fields
