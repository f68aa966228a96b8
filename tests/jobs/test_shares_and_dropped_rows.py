import json
from collections import Counter
from pathlib import Path

import pytest
import run_folders
import tiny_jobs

# Of the responses of a batch the first has no score, and the others have different ones.
REWARD = """
def lengths(solution_strs, extra_infos, **rows):
    assert all("level" in info for info in extra_infos)
    return [float("nan"), *(float(n) for n in range(1, len(solution_strs)))]
"""


def test_shares_hold_and_rows_that_are_left_out_are_not_trained_on(
    run_through, tiny_job, tiny_data, tmp_path: Path, output: Path
):
    lines = Path(tiny_data["train"][0]["path"]).read_text().splitlines()
    data = [json.loads(line) for line in lines]
    train = []
    for name, part in (("few", data[:6]), ("many", data[6:])):
        named = [row | {"data_source": name, "extra_info": {"level": 1}} for row in part]
        (tmp_path / f"{name}.json").write_text(json.dumps(named))
        train.append({"path": str(tmp_path / f"{name}.json"), "weight": 1})
    job = tiny_job(
        data={**tiny_data, "train": train, "validation": []},
        algorithm={
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 3,
            "groupFilter": {"keep": 2, "metric": "score"},
        },
        rewards=tiny_jobs.reward_at(tmp_path / "lengths.py", REWARD, onError="drop"),
        steps={"total": 3},
    )
    run_through(job, output, "controller.step.recorded@2=kill")
    drawn: dict[str, list[int]] = {"few": [], "many": []}
    for step, line in enumerate(run_folders.metrics(output), start=1):
        kept = run_folders.rows(output, step)
        told = run_folders.rows(output, step, "advantages")
        assert Counter(row["data_source"] for row in kept) == {"few": 6, "many": 6}
        assert {row["extra_info"] for row in kept} == {'{"level":1}'}
        for row in kept[::3]:
            drawn[row["data_source"]].append(row["prompt_id"])
        assert line["reward_extra/dropped/mean"] == pytest.approx(1 / 12)
        # The first row has no score, and the first of each other group has the lowest.
        left = [n for n in range(12) if n % 3]
        assert [row["reward"] for row in told] == [n if n in left else 0 for n in range(12)]
        assert line["critic/score/mean"] == 6.0
        assert line["critic/rewards/mean"] == sum(left) / 8
        # Those that are kept differ by a deviation, and are compared alone.
        expected = pytest.approx([0.0, -(0.5**0.5), 0.5**0.5] * 4, rel=1e-5)
        assert [row["advantage"] for row in told] == expected
    # Three batches with two prompts each go once through the six rows of the first file.
    assert sorted(drawn["few"]) == list(range(6))
    assert len(set(drawn["many"])) == 6
