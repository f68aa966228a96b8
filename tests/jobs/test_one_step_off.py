from collections.abc import Callable
from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs
import tiny_models
import torch
from run_folders import rows
from tiers import first_in_test
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.timeout(1_800)

STEPS = 5
AHEAD = {"engine": "huggingface", "dtype": "float32", "maxStaleness": 1}
AT_ONCE = {**AHEAD, "maxStaleness": 0}
STILL = {"learningRate": 1e-30}
"""Too little to change a weight."""
JOB = {
    "timeouts": {"livenessSeconds": 60},
    "rollout": AHEAD,
    "algorithm": {
        "type": "remax",
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "miniBatchPrompts": 2,
        "epochs": 2,
        "kl": {"in": "reward", "coefficient": 0.01},
    },
    "steps": {"total": STEPS, "validateEvery": 2},
    "checkpoint": {"every": 2},
    "roles": {"rollout": {}},
}
"""With greedy responses beside those that are trained on, and a reference."""

FAR = {
    **JOB,
    "rollout": {
        **AHEAD,
        "maxStaleness": 3,
        "stopTokenIds": [tiny_models.NAMES.index(sign) for sign in ".,:;!?+-*/"],
    },
    "steps": {"total": 7, "validateEvery": 2},
    "checkpoint": {"every": 2, "keepLast": 10},
}
"""Three steps ahead, with rows of one token to eight, some of them by weights of three versions."""

BESIDE = {**FAR, "rollout": {**FAR["rollout"], "maxStaleness": 2}, "roles": {}}
"""With engines in the ranks that train, which draw the rows of two steps beside those of one."""

OF_A_STEP, VALIDATION = 12, 8
"""Calls of the reward function."""
FAILING = tiny_jobs.REWARD.replace(
    '"""\n',
    '''"""
    with open({calls!r}, "a+") as calls:
        calls.write("x")
        if calls.tell() > {after}:
            raise KeyError("no")
''',
)


@pytest.fixture(scope="module")
def whole(alone: Callable[..., Path]) -> Path:
    return alone(**JOB)


def drawn(output: Path, step: int, purpose: str = "rollouts") -> list[object]:
    told = ("prompt_id", "response_ids", "rollout_logprobs")
    return [[row[name] for name in told] for row in rows(output, step, purpose)]


def test_rows_are_drawn_by_weights_one_version_old(whole: Path):
    for step in range(1, STEPS + 1):
        for purpose in ("rollouts", "greedy"):
            versions = {s["version"] for row in rows(whole, step, purpose) for s in row["segments"]}
            assert versions == {max(0, step - 2)}
    assert {s["version"] for row in rows(whole, 4, "validation") for s in row["segments"]} == {4}
    lines = run_folders.metrics(whole)[1:]
    assert [line["async/staleness_mean"] for line in lines] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert not run_folders.unnamed(run_folders.metrics(whole))


def test_rows_are_those_of_the_weights_the_prompts_and_the_seeds(
    whole, finished, tiny_folder, tmp_path
):
    """A job that trains nothing draws all steps with weights 1, those of step 3 among them."""
    job = {**JOB, "steps": {"total": 3, "validateFirst": False}}
    ahead = finished("ahead", tiny_folder, **job | {"checkpoint": {"every": 1, "keepLast": 10}})
    model = tmp_path / "version-1"
    run_folders.export(ahead, model, "--checkpoint", "step-000001")
    job |= {"model": {"path": str(model)}, "optimizer": STILL, "rollout": AT_ONCE}
    still = finished("still", tiny_folder, **job)
    assert drawn(still, 3) == drawn(ahead, 3) == drawn(whole, 3)
    assert drawn(still, 3, "greedy") == drawn(whole, 3, "greedy")
    assert drawn(still, 2) != drawn(whole, 2), "which is of weights 0"


@pytest.mark.parametrize(
    "points",
    first_in_test(
        {
            "engines and others": (
                "rpc.generate.answer.before@2=kill",
                "rpc.generate.answer.after@3=kill",
                "rpc.sync_engine_weights.answer.before@1=kill",
                "rpc.sync_engine_weights.answer.after@2=kill",
                "rpc.transfer_rows.answer.before@2=kill",
                "rpc.transfer_rows.answer.after@1=kill",
                "rpc.open_channel.answer.before@1=kill",
                "rpc.update.answer.before@3=kill",
                "rpc.update.answer.after@7=kill",
                "rpc.score.answer.before@2=kill",
                "rpc.score.answer.after@4=kill",
                "rpc.load_rows.answer.before@1=kill",
                "rpc.write_rows.answer.after@3=kill",
                "rpc.sync_weights.answer.after@3=kill",
            ),
            "the controller": (
                "controller.step.begin@2=kill",
                "controller.step.computed@1=kill",
                "controller.step.recorded@2=kill",
                "controller.step.journaled@1=kill",
                "checkpoint.shard.write.middle@1=kill",
                "checkpoint.seal.rename.before@1=kill",
                "checkpoint.seal.rename.after@1=kill",
                "rows.part.rename.after@5=kill",
            ),
            "stopped": (
                "rpc.generate.answer.before@2=stop",
                "rpc.transfer_rows.answer.before@3=stop",
                "controller.step.computed@2=kill",
                "rpc.update.answer.before@10=kill",
            ),
        }
    ),
)
def test_killed_anywhere(run_through, tiny_job, output: Path, whole: Path, points):
    job = dict(JOB)
    if any(point.endswith("=stop") for point in points):
        job["timeouts"] = {"livenessSeconds": 10}  # each of them costs as much
    run_through(tiny_job(**job), output, *points, seconds=1_500)
    assert run_folders.result(output) == run_folders.result(whole)


@pytest.mark.long
def test_everything_killed_at_once(run_through_lives, tiny_job, output: Path, whole: Path):
    """What was drawn ahead of the checkpoint is in it; its weights are nowhere."""
    points = (
        "checkpoint.seal.rename.after@1",
        "rpc.update.answer.after@6",  # in step 4, a step behind it
        "controller.step.begin@2",  # again, in what goes on from there
    )
    run_through_lives(tiny_job(**JOB), output, *points)
    assert run_folders.result(output) == run_folders.result(whole)


@pytest.mark.long
def test_a_killed_controller_draws_and_brings_nothing_again(run_through, tiny_job, output, whole):
    points = ("controller.step.computed@2=kill", "controller.step.recorded@2=kill")
    run_through(tiny_job(**JOB), output, *points)
    assert run_folders.rewinds(output) == 1, "only the start counts as one"
    assert run_folders.result(output) == run_folders.result(whole)


def test_ctrl_c_keeps_what_is_drawn(start, tiny_job, output: Path, whole: Path, once: Path):
    job = tiny_job(**JOB)
    run = start(job, output, **job_points.armed(once, "controller.step.begin@3=stop"))
    run.interrupt_where_it_stopped()
    assert run.wait() == 130, run.logs()
    assert run_folders.metrics(output)[-1]["step"] == 3
    assert list((output / "checkpoints" / "step-000003" / "ahead" / "train").iterdir())
    start(job, output).succeed()
    assert run_folders.result(output) == run_folders.result(whole)


@pytest.mark.long
@pytest.mark.parametrize(("run", "job"), [("far", FAR), ("beside", BESIDE)])
def test_a_mended_reward_scores_the_rows_that_were_drawn(
    run, job, request, start, tiny_job, tmp_path, output
):
    """In a step, then in a validation, whose failure leaves a checkpoint; killed in its making."""
    path = tmp_path / "letters.py"
    rewards = tiny_jobs.reward_at(path, tiny_jobs.REWARD)
    job = tiny_job(**{**job, "rewards": rewards, "checkpoint": {"every": None}})
    in_step_3 = VALIDATION + 2 * OF_A_STEP + VALIDATION
    for calls, saved in ((in_step_3, 2), (2 * OF_A_STEP, 4)):
        path.write_text(FAILING.format(calls=str(tmp_path / f"calls-{saved}"), after=calls))
        once = tmp_path / f"once-{saved}"
        armed = job_points.armed(once, "checkpoint.seal.rename.before@1=kill")
        failed = start(job, output, **armed)
        assert failed.wait() == 3, failed.logs()
        assert any(f"step {saved} is saved" in line for line in failed.lines), failed.lines
        assert job_points.fired(once)
    path.write_text(tiny_jobs.REWARD)
    start(job, output).succeed()
    assert run_folders.result(output) == run_folders.result(request.getfixturevalue(run))


@pytest.mark.long
def test_another_number_of_ranks_goes_on_with_the_same_rows(start, tiny_job, output, once, whole):
    armed = job_points.armed(once, "controller.step.begin@3=kill_group")
    assert start(tiny_job(**JOB), output, **armed).wait() == 3
    changes = {**JOB, "roles": {"actorRollout": {"ranksPerReplica": 2}, "rollout": {"replicas": 2}}}
    start(tiny_job(**changes), output).succeed()
    assert drawn(output, 3) == drawn(whole, 3), "those of the checkpoint"
    ours, theirs = ([row["response_ids"] for row in rows(run, 4)] for run in (output, whole))
    assert ours == theirs, "drawn by its weights"


@pytest.fixture(scope="module")
def far(alone: Callable[..., Path]) -> Path:
    return alone(**FAR)


@pytest.fixture(scope="module")
def beside(alone: Callable[..., Path]) -> Path:
    return alone(**BESIDE)


def spans(output: Path, step: int, purpose: str = "rollouts") -> list[list[tuple[int, int]]]:
    """(rows,) versions of the weights that drew each row, and how many tokens each."""
    segments = [row["segments"] for row in rows(output, step, purpose)]
    return [[(one["version"], one["tokens"]) for one in of_row] for of_row in segments]


@pytest.mark.parametrize(
    ("run", "oldest", "newest"), first_in_test([("far", 4, 2), ("beside", 3, 1)])
)
def test_long_rows_go_on_with_newer_weights(run, oldest, newest, request):
    """The versions of a step's rows are those from `oldest` to `newest` before it."""
    output = request.getfixturevalue(run)
    lines = run_folders.metrics(output)[1:]
    assert not run_folders.unnamed(lines)
    for step, line in enumerate(lines, start=1):
        of_rows = spans(output, step)
        for row in of_rows + spans(output, step, "greedy"):
            versions = list(dict.fromkeys(version for version, _ in row))
            assert versions == list(range(max(0, step - oldest), versions[-1] + 1))
            assert versions[-1] <= max(0, step - newest)
        drawn_by = [version for row in of_rows for version, tokens in row for _ in range(tokens)]
        ages = [step - 1 - version for version in drawn_by]
        assert line["async/staleness_max"] == max(ages) <= oldest - 1
        assert line["async/staleness_mean"] == pytest.approx(sum(ages) / len(ages))
        several = sum(len({version for version, _ in row}) > 1 for row in of_rows)
        assert line["async/partial_rows"] == several / len(of_rows)
    assert any(line["async/partial_rows"] > 0 for line in lines)


@pytest.mark.long
@pytest.mark.parametrize(("run", "job"), [("far", FAR), ("beside", BESIDE)])
def test_the_rows_are_trained_on_as_any(run, job, request, replay, tiny_job):
    """The synchronous job, given these rows, ends with these weights and says the same."""
    rollout = {**job["rollout"], "maxStaleness": 0}
    replay(tiny_job(**{**job, "rollout": rollout, "roles": {}}), request.getfixturevalue(run))


@pytest.mark.parametrize(("run", "version"), first_in_test([("far", 4), ("far", 2), ("beside", 4)]))
def test_each_token_was_drawn_by_the_weights_that_are_named(
    run, request, tiny_folder, tmp_path, version
):
    """The log-probabilities of a segment are those of its version, behind all tokens before it."""
    output = request.getfixturevalue(run)
    run_folders.export(output, tmp_path / "model", "--checkpoint", f"step-{version:06d}")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder / "model")
    continued = 0
    for step in range(version + 1, 8):
        for row in rows(output, step):
            prompt = tokenizer.encode(row["prompt"], add_special_tokens=False)
            assert len(prompt) == row["prompt_tokens"]
            ids = torch.tensor([prompt + row["response_ids"]])
            with torch.inference_mode():
                found = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
            start = 0
            for segment in row["segments"]:
                own = range(start, start + segment["tokens"])
                start += segment["tokens"]
                expected = [found[len(prompt) + at - 1, row["response_ids"][at]] for at in own]
                told = row["rollout_logprobs"][own.start : own.stop]
                is_ours = segment["version"] == version
                assert (told == pytest.approx([float(x) for x in expected], abs=1e-4)) == is_ours
                continued += is_ours and own.start > 0
    assert continued, "some rows went on with these weights"


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [
        (
            "rpc.generate.answer.before@2=kill",
            "rpc.generate.answer.after@4=kill",
            "rpc.sync_engine_weights.answer.after@2=kill",
            "rpc.transfer_rows.answer.before@3=kill",
            "rpc.update.answer.before@9=kill",
            "rpc.restore.answer.before@2=kill",
            "rows.under_way.rename.before@1=kill",
        ),
        (
            "controller.step.begin@3=kill",
            "controller.step.computed@2=kill",
            "controller.step.journaled@4=kill",
            "checkpoint.seal.rename.before@1=kill",
            "rpc.save_shards.answer.after@3=kill",
            "rows.under_way.rename.after@2=kill",
        ),
    ],
    ids=["the engines and the policy", "the controller"],
)
def test_killed_anywhere_with_rows_under_way(run_through, tiny_job, output, far, points):
    run_through(tiny_job(**FAR), output, *points, seconds=1_500)
    assert run_folders.result(output) == run_folders.result(far)


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [
        (
            "rpc.generate.answer.before@2=kill",
            "rpc.generate.answer.after@5=kill",
            "rpc.sync_weights.answer.after@2=kill",
            "rpc.update.answer.before@9=kill",
            "rpc.load_rows.answer.after@1=kill",
            "rpc.restore.answer.before@1=kill",
            "rows.under_way.rename.before@1=kill",
        ),
        (
            "controller.step.begin@3=kill",
            "controller.step.computed@2=kill",
            "rpc.score.answer.before@5=kill",
            "checkpoint.seal.rename.before@1=kill",
            "rpc.save_shards.answer.after@2=kill",
            "rows.under_way.rename.after@2=kill",
        ),
    ],
    ids=["the ranks that draw and train", "the others"],
)
def test_killed_anywhere_with_rows_beside_a_step(run_through, tiny_job, output, beside, points):
    run_through(tiny_job(**BESIDE), output, *points, seconds=1_500)
    assert run_folders.result(output) == run_folders.result(beside)


@pytest.mark.long
def test_killed_while_rows_under_way_are_written_beside_the_steps(
    run_through, tiny_job, output, far
):
    points = (
        "controller.step.begin@3=kill",
        "controller.step.computed@2=kill",
        "rows.under_way.rename.before@2=kill",
        "checkpoint.shard.write.middle@3=kill",
    )
    job = {**FAR, "checkpoint": {**FAR["checkpoint"], "background": True}}
    run_through(tiny_job(**job), output, *points, seconds=1_500)
    assert run_folders.result(output) == run_folders.result(far)


@pytest.mark.long
def test_adapters_alone_reach_engines_far_ahead(run_twice, tiny_job, tiny_folder):
    """Which keep the weights below, go on with rows by newer adapters, and are killed."""
    lora = {"rank": 4, "alpha": 8, "targetModules": ["q_proj", "down_proj"]}
    job = {
        **FAR,
        "model": {"path": str(tiny_folder / "model"), "lora": lora},
        "rollout": {**FAR["rollout"], "adapters": "beside"},
        "optimizer": {"learningRate": 1e-2},
    }
    points = ("rpc.generate.answer.after@4=kill", "rpc.sync_engine_weights.answer.after@3=kill")
    run_twice(tiny_job(**job), *points)


@pytest.mark.parametrize(("run", "job"), first_in_test([("far", FAR), ("beside", BESIDE)]))
def test_everything_killed_with_rows_under_way(
    run, job, request, run_through_lives, tiny_job, output
):
    """The checkpoint has what was drawn ahead of it; what came later is drawn again."""
    points = (
        "controller.step.computed@2",  # before there is a checkpoint
        "rpc.update.answer.after@14",  # in step 4, a step behind one
        "controller.step.begin@3",  # in step 5, right behind one
        "controller.step.journaled@3",  # behind the last step
    )
    run_through_lives(tiny_job(**job), output, *points)
    assert run_folders.result(output) == run_folders.result(request.getfixturevalue(run))


@pytest.mark.long
@pytest.mark.parametrize(
    ("run", "job", "engines", "under_way"),
    [("far", FAR, {"rollout": {"replicas": 2}}, (6, 7)), ("beside", BESIDE, {}, (5, 6))],
)
def test_other_engines_go_on_with_the_rows_under_way(
    run, job, engines, under_way, request, start, tiny_job, output, once
):
    whole = request.getfixturevalue(run)
    armed = job_points.armed(once, "controller.step.begin@5=kill_group")
    assert start(tiny_job(**job), output, **armed).wait() == 3
    changes = {**job, "roles": {"actorRollout": {"ranksPerReplica": 2}, **engines}}
    start(tiny_job(**changes), output).succeed()
    if engines:
        assert drawn(output, 5) == drawn(whole, 5), "those of the checkpoint"
    for step in under_way:
        ours, theirs = (
            [row["response_ids"][: row["segments"][0]["tokens"]] for row in rows(one, step)]
            for one in (output, whole)
        )
        assert ours == theirs, "what was under way"


@pytest.mark.vllm
@pytest.mark.parametrize(
    "job", [pytest.param(FAR, id="far"), pytest.param(BESIDE, id="beside", marks=pytest.mark.long)]
)
def test_vllm_goes_on_with_rows_under_way(job, run_through, tiny_job, output, alone):
    """Its own engine, in which a phase is ended by aborts; killed behind a checkpoint."""
    rollout = {**job["rollout"], "engine": "vllm", "kvCacheGib": 0.1}
    changes = {**job, "rollout": rollout, "steps": {"total": 5, "validateFirst": False}}
    whole = alone(**changes)
    assert any(line["async/partial_rows"] > 0 for line in run_folders.metrics(whole))
    run_through(tiny_job(**changes), output, "rpc.generate.answer.before@4=kill", seconds=900)
    assert run_folders.result(output) == run_folders.result(whole)


@pytest.mark.long
def test_experts_of_rows_under_way_are_replayed(run_twice, tiny_folder_of, tmp_path):
    """Those of each phase: with weights that stay, trainer and engine agree."""
    algorithm = {**BESIDE["algorithm"], "kl": {}, "epochs": 1, "routerReplay": "rollout"}
    job = {**BESIDE, "algorithm": algorithm, "optimizer": STILL, "steps": {"total": 5}}
    manifest = tiny_jobs.write_manifest(tmp_path, tiny_folder_of(0.0, "mixture"), **job)
    calm = run_twice(manifest, "rpc.generate.answer.before@4=kill")
    lines = run_folders.metrics(calm)[-5:]
    assert any(line["async/partial_rows"] > 0 for line in lines)
    assert all(line["training/rollout_probs_diff_mean"] < 1e-5 for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("job", [JOB, FAR], ids=["one", "far"])
def test_engines_move_beside_the_trainer_and_back(job, start, tiny_job, output, once):
    """Rows are begun anew or go on, and no token is older than it may be."""
    moved = {**job, "roles": {}}
    for begun, now in ((3, job), (2, moved)):  # steps of each
        armed = job_points.armed(once, f"controller.step.begin@{begun}=kill_group")
        run = start(tiny_job(**now), output, **armed)
        assert run.wait() == 3, run.logs()
        run_folders.wait_until_gone(output)
    start(tiny_job(**job), output).succeed()
    lines = run_folders.metrics(output)[1:]
    assert [line["step"] for line in lines] == list(range(1, job["steps"]["total"] + 1))
    bound = job["rollout"]["maxStaleness"]
    assert all(line["async/staleness_max"] <= bound for line in lines)
