import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from ppojob_cli.main import main

pytestmark = pytest.mark.processes

FUNCTIONS = """
def length(data_source, solution_str, ground_truth, extra_info):
    return {"score": len(solution_str), "asked": extra_info["index"]}

def fails(data_source, solution_str, ground_truth, extra_info):
    raise ValueError(solution_str)

def together(solution_strs, **rows):
    raise MemoryError
"""


def evaluated(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


def rows(folder: Path, **columns: list[object]) -> Path:
    there = {
        "prompt": [[{"role": "user", "content": "q"}]] * 2,
        "data_source": ["openai/gsm8k"] * 2,
        "reward_model": [{"style": "rule", "ground_truth": truth} for truth in "12"],
        "extra_info": [{"index": index} for index in range(2)],
        "responses": [["#### 1", "#### 2"], ["#### 2", "none"]],
    }
    columns = {name: cells for name, cells in {**there, **columns}.items() if cells is not None}
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_the_numbers_of_two_prompts_with_two_responses(tmp_path: Path) -> None:
    """Each prompt has one right answer of two. Of 1,000 draws of two with numpy's stream of seed
    42, 246 are twice the first response, 230 twice the second, and 513 begin with the first."""
    done = evaluated(rows(tmp_path), "--json", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    metrics = json.loads(done.stdout)
    core = "val-core/openai/gsm8k/acc"
    assert metrics[f"{core}/mean@1"] == metrics[f"{core}/mean@2"] == 0.5
    assert metrics["val-aux/openai/gsm8k/acc/std@2"] == 0.5
    assert metrics[f"{core}/best@2/mean"] == 0.770
    assert metrics[f"{core}/maj@2/mean"] == 0.513
    assert metrics["val-aux/openai/gsm8k/acc/worst@2/mean"] == 0.246
    assert json.loads((tmp_path / "out" / "evaluation.jsonl").read_text()) == metrics
    scored = pq.read_table(tmp_path / "out" / "scored.parquet").to_pylist()
    assert [(row["prompt_id"], row["sample"], row["score"], row["pred"]) for row in scored] == [
        (0, 0, 1.0, "1"),
        (0, 1, 0.0, "2"),
        (1, 0, 1.0, "2"),
        (1, 1, 0.0, "[INVALID]"),
    ]
    for options in ([], ["--kept"]):  # what is written can be read, and says the same
        again = evaluated(tmp_path / "out" / "scored.parquet", "--json", *options)
        assert json.loads(again.stdout) == metrics


def test_a_table_for_people(tmp_path: Path) -> None:
    done = evaluated(rows(tmp_path))
    first, header, *lines = done.stdout.splitlines()
    assert first == "openai/gsm8k: 2 prompts, 4 responses"
    assert header.split() == ["acc", "reward"]
    numbers = {line.split()[0]: line.split()[1:] for line in lines}
    assert numbers["mean@2"] == ["0.5000*", "0.5000"]
    assert done.stderr.splitlines()[-1].startswith("* main metric")
    assert set(numbers) == {
        *("mean@1", "mean@2", "std@2"),
        *(f"{word}@2/mean" for word in ("best", "worst", "maj")),
    }


def test_a_function_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FUNCTIONS)
    done = evaluated(rows(tmp_path), "--function", f"{file}:length", "--json", "--processes", 2)
    metrics = json.loads(done.stdout)
    assert metrics["val-aux/openai/gsm8k/reward/mean@2"] == (6 + 6 + 6 + 4) / 4
    assert metrics["val-aux/openai/gsm8k/asked/mean@2"] == 0.5


@pytest.mark.parametrize(
    ("columns", "options", "status", "place"),
    [
        ({"responses": None}, [], 2, "{rows}:responses: got "),
        ({"data_source": None}, [], 2, "{rows}:0:data_source: got "),
        ({"data_source": ["none", "openai/gsm8k"]}, [], 2, "{rows}:0:data_source: got "),
        ({"reward_model": None}, [], 2, "{rows}:0:ground_truth: got "),
        ({}, ["--kept"], 2, "{rows}:0: got no score"),
        ({}, ["--function", "{own}"], 2, "--function: got "),
        ({}, ["--function", "{own}:none"], 2, "--function: got none"),
        ({}, ["--function", "{folder}/gone.py:length"], 2, "--function: got "),
        ({}, ["--function", "{own}:length", "--job", "{own}"], 2, "--function: got --job"),
        ({}, ["--kept", "--function", "{own}:length"], 2, "--kept: got --function"),
        ({}, ["--job", "{folder}/gone.yaml"], 2, "{folder}/gone.yaml: got "),
        ({}, ["--function", "{own}:fails"], 3, "{rows}:0:responses[0]: --function 'fails': Rew"),
        (
            {},
            ["--function", "{own}:together"],
            3,
            "{rows}:0:responses[0] to {rows}:1:responses[1]: --function 'together': "
            "RewardMemory: got MemoryError: it raised at {own}:",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    columns: dict[str, list[object]], options: list[str], status: int, place: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    path = rows(tmp_path, **columns)
    names = {"rows": path, "own": tmp_path / "own.py", "folder": tmp_path}
    given = [option.format(**names) for option in options]
    done = evaluated(path, *given, "--output", tmp_path / "out")
    assert done.exit_code == status, done.output
    assert not done.stdout
    *progress, line = done.stderr.splitlines()
    assert line.startswith(place.format(**names))
    assert all("scored by" in told for told in progress)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = evaluated(tmp_path / "gone.parquet")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{tmp_path / 'gone.parquet'}: got no such file: ")


def test_rows_are_counted_and_not_their_responses(tmp_path: Path) -> None:
    path = rows(tmp_path, reward_model=None)
    (line,) = evaluated(path).stderr.splitlines()
    assert line.startswith(f"{path}:0:ground_truth: got ")
    assert "(and 1 more row like it)" in line


def test_a_file_of_no_rows_is_told_without_fields_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: PPOJob\n")
    (line,) = evaluated(tmp_path / "job.yaml").stderr.splitlines()
    assert line.endswith(
        "; a complete parquet file, not encrypted, or one in .jsonl, .ndjson, .json"
    )
    path = rows(tmp_path, responses=None, **{f"column-{n}": [0, 0] for n in range(99)})
    (line,) = evaluated(path).stderr.splitlines()
    assert "column-15, ...; " in line


def test_a_run_that_has_validated_nothing(tmp_path: Path) -> None:
    rows(tmp_path)
    (tmp_path / "job.yaml").touch()
    done = evaluated(tmp_path)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{tmp_path}: got a run folder without validation/: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_folder_of_a_model_is_told_for_what_it_is(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (line,) = evaluated(tmp_path).stderr.splitlines()
    assert line.startswith(f"{tmp_path}: got the folder of a model: ")


def test_no_torch_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from ppojob_cli.main import main\n"
        f"main(['evaluate', {str(rows(tmp_path))!r}], standalone_mode=False)\n"
        "print({'torch', 'transformers', 'vllm'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
