import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.evaluation.answers import read_answers
from ppojob_trainer.json_value import Json
from ppojob_trainer.rows.row_files import SCHEMA, read_responses, truth_cells, write_responses
from ppojob_trainer.rpc.messages.rollout import OF_DATA

ROW = {"sample": 0, "data_source": "d", "prompt": "p", "score": 1.0, "truncated": False}


def write_ours(path: Path, *rows: dict[str, object], schema: pa.Schema = SCHEMA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{**ROW, "extra_info": "{}", "reward_values": "{}", **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)
    return path


def ours(step: int, row: int, prompt: int, response: str) -> dict[str, object]:
    return {"step": step, "row": row, "prompt_id": prompt, "response": response}


def write_verl(path: Path, **columns: list[object]) -> Path:
    there = {"prompt": ["p", "q"], "data_source": ["d", "e"], "responses": [["a", "b"], ["c"]]}
    pq.write_table(pa.table({**there, **columns}), path)
    return path


def test_parts_of_a_batch_are_one_in_the_order_of_its_rows(tmp_path: Path) -> None:
    """Also of two steps, and of two runs whose prompts have the same numbers."""
    for run in ("a", "b"):
        validation = tmp_path / run / "validation"
        for step in (0, 10):
            folder = validation / f"step-{step:06d}.parquet"
            write_ours(folder / "part-00000.parquet", ours(step, 2, 8, "x"), ours(step, 0, 7, "y"))
            write_ours(folder / "part-00001.parquet", ours(step, 1, 7, "z"))
    found = read_answers(tmp_path / "a")
    assert list(found) == [0, 10]
    for first, answers in zip((0, 2), found.values(), strict=True):
        numbered = [(one.prompt - first, one.response) for one in answers]
        assert numbered == [(0, "y"), (0, "z"), (1, "x")]
    both = read_answers(tmp_path / "*" / "validation" / "step-000000.parquet")[0]
    assert [one.prompt for one in both] == [0, 0, 1, 2, 2, 3]


def test_responses_that_the_data_has_given_are_passed_over(tmp_path: Path) -> None:
    given, drawn = (
        {**ours(1, row, 0, name), "segments": [{"tokens": 1, "version": version}]}
        for row, name, version in ((0, "given", OF_DATA), (1, "drawn", 3))
    )
    answers = read_answers(write_ours(tmp_path / "rows.parquet", given, drawn))[1]
    assert [one.response for one in answers] == ["drawn"]


@pytest.mark.parametrize("truth", ["72", 72, "[1]", [1], {"target": 5, "numbers": [1, 4]}, None])
def test_a_ground_truth_comes_back_as_what_it_was(truth: Json, tmp_path: Path) -> None:
    row = {**ours(0, 0, 0, "r"), **truth_cells(truth)}
    path = write_ours(tmp_path / "rows.parquet", row)
    assert read_answers(path)[0][0].ground_truth == truth


def test_rows_of_an_earlier_version(tmp_path: Path) -> None:
    """They do not say which truths are JSON; objects and lists are taken for it."""
    later = ("truth_is_json", "figures", "extra_info")
    schema = pa.schema([field for field in SCHEMA if field.name not in later])
    rows = [ours(0, row, row, "r") | truth_cells(truth) for row, truth in enumerate(["7", [1]])]
    answers = read_answers(write_ours(tmp_path / "rows.parquet", *rows, schema=schema))[0]
    assert [one.ground_truth for one in answers] == ["7", [1]]
    assert [one.extra_info for one in answers] == [{}, {}]


def test_the_columns_of_main_generation(tmp_path: Path) -> None:
    truths = [{"style": "rule", "ground_truth": "1"}, {"style": "rule", "ground_truth": "2"}]
    path = write_verl(tmp_path / "v.parquet", reward_model=truths, extra_info=[{"index": 3}, None])
    (answers,) = read_answers(path).values()
    assert [
        (one.prompt, one.sample, one.data_source, one.response, one.ground_truth, one.extra_info)
        for one in answers
    ] == [
        (0, 0, "d", "a", "1", {"index": 3}),
        (0, 1, "d", "b", "1", {"index": 3}),
        (1, 0, "e", "c", "2", {}),
    ]


def test_lines_of_json_with_one_response_each(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"data_source": "d", "response": "r"}) + "\n")
    (answer,) = read_answers(path)[None]
    assert (answer.response, answer.ground_truth, answer.recorded) == ("r", None, None)


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        ({"responses": [["a"], None]}, ":1:responses"),
        ({"responses": [["a"], []]}, ":1:responses"),
        ({"responses": [["a", None], ["b"]]}, ":0:responses[1]"),
        ({"data_source": [None, "d"]}, ":0:data_source"),
        ({"extra_info": ["x", "y"]}, ":0:extra_info"),
    ],
)
def test_a_cell_that_is_none(columns: dict[str, list[object]], place: str, tmp_path: Path) -> None:
    path = write_verl(tmp_path / "v.parquet", **columns)
    with pytest.raises(ConfigError) as refused:
        read_answers(path)
    (line,) = refused.value.problems
    assert line.startswith(f"{path}{place}: got ")


def test_responses_come_back_from_the_file_that_is_written(tmp_path: Path) -> None:
    """Cells that parquet cannot hold in one column are JSON, and texts stay texts."""
    prompts = [
        PromptRow(0, (1,), [{"role": "user", "content": "1+1"}], "d", "2", {"index": 0}),
        PromptRow(1, (1,), [{"role": "user", "content": "1+2"}], "e", "3", {"own": {}}),
    ]
    parts = [
        write_ours(tmp_path / "1.parquet", ours(0, 3, 1, "d"), ours(0, 2, 1, "c")),
        write_ours(tmp_path / "0.parquet", ours(0, 0, 0, "a"), ours(0, 1, 0, "b")),
    ]
    path = tmp_path / "responses.parquet"
    write_responses(path, prompts, read_responses(parts))
    table = pq.read_table(path).to_pylist()
    assert [row["responses"] for row in table] == [["a", "b"], ["c", "d"]]
    assert [row["prompt"] for row in table] == [prompt.prompt for prompt in prompts]
    (answers,) = read_answers(path).values()
    assert [one.ground_truth for one in answers] == ["2", "2", "3", "3"]
    assert [one.extra_info for one in answers] == [{"index": 0}] * 2 + [{"own": {}}] * 2
