import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.controller.samples import Sample, log_samples, read_samples, sample_lines


def rows(first: int, last: int, samples: int = 4) -> list[dict[str, object]]:
    return [
        {
            "row": row,
            "prompt_id": 100 + row // samples,
            "sample": row % samples,
            "data_source": "addition",
            "prompt": f"<|im_start|>user\n{row // samples}<|im_end|>\n<|im_start|>assistant\n",
            "response": f"answer {row}",
            "ground_truth": "12",
            "score": row / 10,
            "prompt_tokens": 5,
            "response_tokens": 3,
            "truncated": row == 0,
        }
        for row in range(first, last)
    ]


def test_one_sample_a_prompt_over_all_parts(run) -> None:
    run.rows("rollouts", 7, rows(0, 8), part=0)
    run.rows("rollouts", 7, rows(8, 16), part=1)
    found = read_samples(run.folder, "train", 7, 3)
    assert [sample.row for sample in found] == [0, 4, 8]
    assert found[2] == Sample(
        step=7,
        purpose="train",
        row=8,
        prompt="<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n",
        response="answer 8",
        ground_truth="12",
        score=0.8,
        is_truncated=False,
        response_tokens=3,
    )


def test_the_log_shows_what_the_terminal_shows(run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run.rows("validation", 7, rows(0, 8))
    log_samples(run.folder, "validation", 7, 2)
    first, second = read_samples(run.folder, "validation", 7, 2)
    assert caplog.messages == [*sample_lines(first), *sample_lines(second)]
    assert "--- validation 7, row 4: score 0.4" in caplog.messages
    caplog.clear()
    log_samples(run.folder, "validation", 7, 0)
    log_samples(run.folder, "validation", 8, 2)
    assert caplog.messages == []


def test_further_samples_where_prompts_are_few(run) -> None:
    run.rows("validation", 0, rows(0, 8))
    assert [s.row for s in read_samples(run.folder, "validation", 0, 3)] == [0, 1, 4]
    assert len(read_samples(run.folder, "validation", 0, 50)) == 8


def test_what_the_policy_drew_comes_before_what_the_data_gives(run) -> None:
    """Given responses are the first samples of each prompt: nobody would see another one."""
    found = rows(0, 8)
    for row in found:
        row["segments"] = [{"tokens": 3, "version": -1 if row["sample"] == 0 else 6}]
    run.rows("rollouts", 7, found)
    assert [sample.row for sample in read_samples(run.folder, "train", 7, 2)] == [1, 5]
    shown = [sample_lines(one)[0] for one in read_samples(run.folder, "train", 7, 7)]
    assert shown[0] == "--- step 7, row 0: score 0 (cut at the length limit) (given by the data)"
    assert shown[1] == "--- step 7, row 1: score 0.1"


def test_more_rows_than_a_batch(run) -> None:
    run.rows("rollouts", 1, rows(0, 400))
    found = read_samples(run.folder, "train", 1, 90)
    assert [sample.row for sample in found] == list(range(0, 360, 4))


def test_rows_that_are_not_there_or_not_whole(run) -> None:
    folder = run.folder / "rollouts" / "step-000001.parquet"
    assert read_samples(run.folder, "train", 1, 3) == []
    run.rows("rollouts", 1, rows(0, 4))
    (folder / "part-00000.parquet").rename(folder / ".part-00000.parquet.aside")
    assert read_samples(run.folder, "train", 1, 3) == []
    (folder / "part-00000.parquet").write_bytes(b"PAR1 and then nothing")
    assert read_samples(run.folder, "train", 1, 3) == []
    pq.write_table(pa.table({"row": ["a"], "sample": [0]}), folder / "part-00000.parquet")
    assert read_samples(run.folder, "train", 1, 3) == []


def sample(**fields: object) -> Sample:
    values: dict[str, object] = {
        "step": 7,
        "purpose": "train",
        "row": 3,
        "prompt": "<|im_start|>user\n9 + 9 + 8<|im_end|>\n<|im_start|>assistant\n",
        "response": "9 + 9 = 18\n18 + 8 = 26\n#### 26",
        "ground_truth": "26",
        "score": 1.0,
        "is_truncated": False,
    }
    return Sample(**{**values, **fields})


def test_lines() -> None:
    assert sample_lines(sample()) == [
        "--- step 7, row 3: score 1",
        "  prompt    <|im_start|>user",
        "            9 + 9 + 8<|im_end|>",
        "            <|im_start|>assistant",
        "  response  9 + 9 = 18",
        "            18 + 8 = 26",
        "            #### 26",
        "  truth     26",
    ]


def test_of_a_long_prompt_the_tail_and_of_a_long_response_the_head() -> None:
    lines = sample_lines(sample(prompt="a" * 5_000 + "THE END", response="START" + "b" * 5_000))
    assert lines[1].startswith("  prompt    ...aaa")
    assert lines[1].endswith("THE END")
    assert lines[2].startswith("  response  STARTbbb")
    assert lines[2].endswith("b...")
    assert all(len(line) < 700 for line in lines)


def test_a_response_of_many_lines() -> None:
    lines = sample_lines(sample(response="\n".join(map(str, range(40))), purpose="validation"))
    assert lines[0] == "--- validation 7, row 3: score 1"
    assert lines[-2].strip() == "... and 29 lines"
    assert len(lines) < 20


@pytest.mark.parametrize("truth", ['{"target": 3}', "not json", '"a\\nb"', "null"])
def test_any_ground_truth(truth: str) -> None:
    assert sample_lines(sample(ground_truth=truth))[-1].startswith("  truth     ")


@given(st.text(), st.text(), st.text())
def test_nothing_rewrites_the_terminal(prompt: str, response: str, truth: str) -> None:
    lines = sample_lines(sample(prompt=prompt, response=response, ground_truth=truth))
    assert all(line.isprintable() for line in lines)
