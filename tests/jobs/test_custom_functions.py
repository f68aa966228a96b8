from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
from job_runs import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "algorithms" / "sppo.py"
STAGES = {"ranksPerReplica": 2, "parallelism": {"pipeline": 2}}
FIELD = "spec.algorithm.policyLoss.custom"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sppo.py"
    path.write_text(EXAMPLE.read_text())
    return path


@pytest.fixture
def job(file: Path, tiny_folder_of: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    def make(steps: int, loss: str = "sppo", **actor: object) -> Path:
        custom = {"source": {"path": str(file)}}
        of_loss = {**custom, "function": loss, "arguments": {"eta": 2.0}}
        algorithm = {
            "type": "custom",
            "custom": {**custom, "function": "win_rate"},
            "policyLoss": {"type": "custom", "custom": of_loss},
            "lossAggregation": "sequence_mean_token_mean",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
        }
        return tiny_jobs.write_manifest(
            tmp_path,
            tiny_folder_of(0.0),  # dropout draws otherwise under another layout
            algorithm=algorithm,
            steps={"total": steps},
            checkpoint={"every": 1},
            roles={"actorRollout": actor},
        )

    return make


def test_an_edit_is_told_when_a_rank_that_was_killed_reads_it(run_through, job, file, output):
    edits = (
        'def win_rate(*columns):\n    open(__file__, "a").write("#")\n    return own(*columns)\n\n'
    )
    file.write_text(EXAMPLE.read_text().replace("def win_rate(", f"{edits}\ndef own("))
    run = run_through(job(3), output, "rpc.update.answer.before@3=kill")
    told = f"{file}: its content has changed during the run: actorRollout was lost"
    assert any(line.startswith(told) for line in run.lines), run.lines


@pytest.mark.long
def test_the_example_trains_under_a_cut_and_an_edit_is_told_and_a_mistake_named(
    start: Callable[..., Run], job, file: Path, output: Path, tmp_path: Path
):
    start(job(2), tmp_path / "alone").succeed()
    start(job(2, **STAGES), output).succeed()
    lines = zip(*(run_folders.metrics(at)[-2:] for at in (tmp_path / "alone", output)), strict=True)
    for alone, cut in lines:
        assert run_folders.unnamed([alone]) == set()
        assert -0.5 <= alone["critic/advantages/min"] < 0.0 < alone["critic/advantages/max"] <= 0.5
        for name in ("actor/pg_loss", "critic/advantages/max"):
            assert cut[name] == pytest.approx(alone[name], rel=1e-3)

    spoilt = '    assert inputs.logprobs.min() > -2.0, "unlikely"\n    log_ratio ='
    text = EXAMPLE.read_text().replace("    log_ratio =", spoilt)
    file.write_text(text)
    first, bad = (1 + text[: text.index(one)].count("\n") for one in ("def sppo", "    assert"))
    run = start(job(3, **STAGES), output)
    assert run.wait() == 3
    assert any(line.startswith(f"{file}: its content differs from that of") for line in run.lines)
    why = f"{FIELD}: got AssertionError: unlikely: {file}:{first} sppo: "
    assert any(why in line and f"{file}:{bad}" in line for line in run.lines), run.lines
    assert not any("Traceback" in line for line in run.lines), run.lines
