import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from padded_reference import token_logprobs
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS = 20
LETTERS, OTHERS = "letters", "others"
"""Data sources of prompts, in turn."""


@pytest.fixture(scope="module")
def teacher(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model, with more rows of the vocabulary."""
    return tiny_jobs.make_teacher(tiny_folder / "model", tmp_path_factory.mktemp("teacher") / "m")


@pytest.fixture
def distillation(tiny_job, tiny_folder: Path, teacher: Path) -> Callable[..., Path]:
    """Writes manifests of jobs without rewards and validations."""

    def make(settings: dict[str, object], kl: object = None, **changes: object) -> Path:
        sections: dict[str, object] = {
            "data": {
                "train": [{"path": str(tiny_folder / "train.jsonl")}],
                "maxPromptTokens": 64,
                "maxResponseTokens": 8,
            },
            "algorithm": {
                "type": "distillation",
                "promptsPerStep": 8,
                "samplesPerPrompt": 4,
                "miniBatchPrompts": 4,
                "distillation": settings,
                "kl": kl,
            },
            "reference": {"path": str(teacher)},
            "optimizer": {"learningRate": 1e-2},
            "rewards": [],
            "steps": {"total": STEPS},
            "checkpoint": {"every": 6},
        }
        return tiny_job(**sections | changes)

    return make


@pytest.fixture
def several(tiny_folder: Path, tmp_path: Path) -> Callable[..., dict[str, object]]:
    """Sections of a job whose prompts have two data sources, and of its reference's models."""
    rows = [json.loads(line) for line in (tiny_folder / "train.jsonl").read_text().splitlines()]
    data = tmp_path / "mixed.jsonl"
    with data.open("w") as file:
        for number, row in enumerate(rows):
            row["data_source"] = (LETTERS, OTHERS)[number % 2]
            file.write(json.dumps(row) + "\n")

    def sections(**folders: Path) -> dict[str, object]:
        teachers = [{"path": str(path), "dataSources": [name]} for name, path in folders.items()]
        return {
            "data": {"train": [{"path": str(data)}], "maxPromptTokens": 64, "maxResponseTokens": 8},
            "reference": {"teachers": teachers},
        }

    return sections


def divergences(output: Path) -> list[float]:
    return [line["distillation/loss"] for line in run_folders.metrics(output)]


@pytest.mark.long
def test_a_killed_job_learns_the_teacher_as_an_undisturbed_one(run_twice, distillation):
    """Over the whole vocabulary, by two ranks; nothing is scored, and no number says so."""
    job = distillation({"divergence": "reverse_kl"}, roles={"actorRollout": {"ranksPerReplica": 2}})
    points = (
        "rpc.update.answer.before@9=kill",  # in step 5: from the beginning, by the rows of the disk
        "rpc.update.answer.after@17=kill",  # in step 9: back to the checkpoint behind step 6
        "rpc.save_shards.answer.before@2=kill_group",
    )
    whole = run_twice(job, *points)
    found = divergences(whole)
    assert found[-1] < found[0] / 10
    last = run_folders.metrics(whole)[-1]
    assert not [name for name in last if name.startswith("critic/")]
    assert not list((whole / "logs").glob("*reward*"))


@pytest.mark.long
def test_a_teacher_apart_says_the_same_of_the_tokens_that_were_drawn(
    start, run_through, distillation, tmp_path
):
    """By policy gradient; the teacher's rank is killed on the way, and rewards are told alone."""
    rewards = tiny_jobs.reward_at(tmp_path / "letters.py", tiny_jobs.REWARD)
    beside, apart = tmp_path / "beside", tmp_path / "apart"
    start(distillation({}, rewards=rewards), beside).succeed()
    found = divergences(beside)
    assert sum(found[-3:]) < sum(found[:3]) / 2
    assert run_folders.metrics(beside)[-1]["critic/score/mean"] > 0

    roles = {"reference": {"colocateWith": "none"}}
    job = distillation({}, rewards=rewards, roles=roles)
    run_through(job, apart, "rpc.forward.answer.before@3=kill", seconds=500)
    assert divergences(apart) == found


@pytest.mark.long
def test_each_of_several_teachers_reads_the_rows_of_its_data_sources(
    start, run_twice, distillation, several, teacher, tiny_folder, tmp_path
):
    """As jobs with one of them say in the first step; by two ranks, killed, offloaded, apart."""
    policy = tiny_folder / "model"
    steps = {"total": 3}
    told = {}
    for name, folder in ((LETTERS, teacher), (OTHERS, policy)):
        alone = several() | {"reference": {"path": str(folder)}}
        start(distillation({}, steps={"total": 1}, **alone), tmp_path / name).succeed()
        told[name] = advantages(tmp_path / name)
    two = {"actorRollout": {"ranksPerReplica": 2}}
    sections = several(letters=teacher, others=policy)
    roles = {**two, "reference": {"offload": ["weights"]}}
    job = distillation({}, steps=steps, roles=roles, checkpoint={"every": 1}, **sections)
    points = ("rpc.forward.answer.before@4=kill", "rpc.update.answer.after@3=kill")
    whole, apart = run_twice(job, *points), tmp_path / "apart"
    expected = {row: told[source][row] for row, source in data_sources(whole).items()}
    assert set(data_sources(whole).values()) == {LETTERS, OTHERS}
    assert advantages(whole) == pytest.approx(expected, rel=1e-4, abs=1e-5)

    roles = {**two, "reference": {"colocateWith": "none", "ranksPerReplica": 2}}
    start(distillation({}, steps=steps, roles=roles, **sections), apart).succeed()
    run_folders.assert_close(apart, whole)


def advantages(output: Path) -> dict[int, float]:
    """Of the rows of the first step, by their numbers."""
    return {row["row"]: row["advantage"] for row in run_folders.rows(output, 1, "advantages")}


def data_sources(output: Path) -> dict[int, str]:
    return {row["row"]: row["data_source"] for row in run_folders.rows(output, 1)}


@pytest.mark.long
def test_of_several_teachers_over_the_vocabulary_one_is_there_at_a_time(
    start, run_twice, distillation, several, teacher, tiny_folder, even_folder, tmp_path
):
    """In two ranks with weights that leave, killed on the way; and in one, where all stay."""
    sections = several(letters=teacher, others=tiny_folder / "model")
    settings = {"divergence": "forward_kl"}
    sections |= {"model": {"path": str(even_folder / "model")}}  # no dropout, so ranks agree
    sections |= {"steps": {"total": 3}, "checkpoint": {"every": 1}}
    roles = {"actorRollout": {"ranksPerReplica": 2}, "reference": {"offload": ["weights"]}}
    job = distillation(settings, roles=roles, **sections)
    whole, alone = run_twice(job, "rpc.update.answer.before@4=kill"), tmp_path / "alone"
    start(distillation(settings, **sections), alone).succeed()
    run_folders.assert_close(alone, whole)


@pytest.fixture
def said(tiny_folder: Path) -> Callable[[list[dict[str, str]], list[int]], torch.Tensor]:
    """What the policy says of a response behind a prompt before training, by transformers."""
    folder = tiny_folder / "model"
    model, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )

    @torch.no_grad()
    def say(prompt: list[dict[str, str]], response: list[int]) -> torch.Tensor:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
        logits = model(torch.tensor([[*ids, *response]])).logits[0]
        return token_logprobs(logits[len(ids) - 1 : -1], torch.tensor(response))[0]

    return say


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def hinted(tiny_folder: Path, tmp_path: Path) -> dict[str, object]:
    """Sections of a job whose teacher is the policy as it began, and reads the sum as well."""
    rows = [json.loads(line) for line in (tiny_folder / "train.jsonl").read_text().splitlines()]
    data = tmp_path / "hinted.jsonl"
    with data.open("w") as file:
        for row in rows:
            (question,) = row["prompt"]
            told = f"{question['content']}={row['reward_model']['ground_truth']} " * 2
            row["extra_info"]["hint"] = asked(told)
            file.write(json.dumps(row) + "\n")
    return {
        "data": {
            "train": [{"path": str(data)}],
            "teacherPromptKey": "extra_info.hint",
            "maxPromptTokens": 32,
            "maxTeacherPromptTokens": 64,
            "maxResponseTokens": 8,
        },
        "reference": None,
        "steps": {"total": 3},
        "checkpoint": {"every": 1},
    }


APART = {"reference": {"colocateWith": "none", "ranksPerReplica": 2}}


def test_a_teacher_that_reads_another_prompt_says_what_transformers_says(
    start, run_twice, distillation, hinted, said, tmp_path
):
    """Row by row in the first step; killed on the way, and drawn and taught in pods apart."""
    points = ("rpc.forward.answer.before@3=kill", "rpc.update.answer.after@3=kill")
    whole = run_twice(distillation({}, **hinted), *points)
    expected = {}
    for row in run_folders.rows(whole, 1):
        hint, response = json.loads(row["extra_info"])["hint"], row["response_ids"]
        plain = asked(hint[0]["content"].partition("=")[0])
        expected[row["row"]] = float((said(hint, response) - said(plain, response)).mean())
    assert advantages(whole) == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected.values())) > 1e-3

    roles = {**APART, "rollout": {}}
    start(distillation({}, roles=roles, **hinted), tmp_path / "apart").succeed()
    run_folders.assert_close(tmp_path / "apart", whole)


@pytest.mark.long
def test_a_teacher_that_follows_the_policy_teaches_what_it_reads(
    start, run_twice, distillation, hinted, even_folder, tmp_path
):
    """Over the vocabulary, by ranks that share tokens; killed, and against one rank."""
    hinted["model"] = {"path": str(even_folder / "model")}
    hinted["kl"] = {"referenceRefresh": {"everySteps": 1, "mixup": 0.5}}
    shared = {"actorRollout": {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}}
    settings = {"divergence": "jsd"}
    job = distillation(settings, roles=shared, **hinted)
    whole = run_twice(job, "rpc.update.answer.before@4=kill")
    start(distillation(settings, **hinted), tmp_path / "alone").succeed()
    run_folders.assert_close(tmp_path / "alone", whole)
    assert divergences(whole)[0] > 1e-4


@pytest.fixture
def shown(tiny_folder: Path, tmp_path: Path) -> dict[str, object]:
    """Sections of a job whose teacher is shown a good response of the group, and what was said."""
    source = tiny_jobs.REWARD.replace("return ", "score = -1 + ") + SAYS
    return {
        "data": {
            "train": [{"path": str(tiny_folder / "train.jsonl")}],
            "maxPromptTokens": 64,
            "maxTeacherPromptTokens": 100,
            "maxResponseTokens": 8,
        },
        "reference": None,
        "rewards": tiny_jobs.reward_at(tmp_path / "letters.py", source, onError="drop"),
        "steps": {"total": 3},
        "checkpoint": {"every": 1},
    }


SAYS = """
    said = "3" if score == -1 else ""
    score = float("nan") if len(solution_str) % 8 == 7 else score
    return {"score": score, "said": said}
"""
"""Below 0, so that no number stands for a score that is better than those of bad responses."""
REPROMPT = {
    "minScore": -0.5,
    "feedbackKey": "said",
    "template": "{prompt}+{solution}{feedback}",
    "solutionTemplate": "1{response}",
    "feedbackTemplate": "2{feedback}",
}


@pytest.mark.long
def test_a_teacher_is_shown_a_good_response_of_the_group(
    run_through, run_twice, distillation, shown, said, tmp_path
):
    """Row by row in the first step, but where a reward failed; killed on the way, and apart."""
    job = distillation({"reprompt": REPROMPT}, **shown)
    points = ("rpc.reprompt.answer.before@2=kill", "rpc.forward.answer.after@3=kill")
    whole = run_twice(job, *points)
    rows, expected, taught = run_folders.rows(whole, 1), {}, 0
    for row in rows:
        others = [one for one in rows if one["prompt_id"] == row["prompt_id"] and one is not row]
        scored = [one for one in others if not one["dropped"]]
        good = [f"1{one['response']}" for one in scored if one["score"] >= -0.5]
        feedback = "23" if row["score"] == -1 else ""
        plain = row["prompt"].split("\n")[1].removesuffix("<|im_end|>")
        prompt = asked(f"{plain}+{good[0] if good else ''}{feedback}")
        expected[row["row"]] = 0.0
        if (good or feedback) and not row["dropped"]:
            taught += 1
            own = said(asked(plain), row["response_ids"])
            expected[row["row"]] = float((said(prompt, row["response_ids"]) - own).mean())
    found = {row: 0.0 if value is None else value for row, value in advantages(whole).items()}
    assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert 0 < run_folders.metrics(whole)[0]["distillation/taught"] == taught / len(rows) < 1

    apart, once = tmp_path / "apart", tmp_path / "once"
    shutil.rmtree(once)
    job = distillation({"reprompt": REPROMPT}, roles=APART, **shown)
    run_through(job, apart, "rpc.move_rows.answer.after@2=kill")
    run_folders.assert_close(apart, whole)


KILLED_BEHIND_PROMPTS = "rpc.reprompt.answer.after@2=kill_group"


def test_a_step_whose_responses_are_all_bad_teaches_nothing(
    start, run_through, distillation, shown, even_folder, tmp_path
):
    """Over the vocabulary; by good ones in one rank and in two, which are killed with the job."""
    shown["model"] = {"path": str(even_folder / "model")}
    settings = {"divergence": "reverse_kl", "reprompt": {"minScore": 2.0, "feedbackKey": "told"}}
    bad = start(distillation(settings, **shown), tmp_path / "bad").succeed()
    whole = bad.output
    assert 'feedbackKey: got "told"' in bad.logs()
    assert [line["distillation/taught"] for line in run_folders.metrics(whole)] == [0.0] * 3
    settings["reprompt"] = {**REPROMPT, "feedbackKey": None, "feedbackTemplate": None}
    two = {"actorRollout": {"ranksPerReplica": 2}}
    one = start(distillation(settings, numExamine=1, **shown), tmp_path / "one").succeed()
    assert "step 3, row 0: what its teacher reads" in one.logs()
    run_through(distillation(settings, roles=two, **shown), tmp_path / "two", KILLED_BEHIND_PROMPTS)
    run_folders.assert_close(tmp_path / "one", tmp_path / "two")
    assert run_folders.metrics(tmp_path / "one")[0]["distillation/taught"] > 0.5


@pytest.mark.long
def test_rows_that_are_drawn_ahead_are_taught_by_what_succeeded(
    run_twice, replay, distillation, shown
):
    """Two steps ahead, in pods of their own; killed, and again from its rows."""
    rollout = {"engine": "huggingface", "dtype": "float32", "maxStaleness": 2}
    sections = {**shown, "rollout": rollout, "roles": {"rollout": {}}}
    job = distillation({"reprompt": REPROMPT}, **sections)
    points = (
        "rpc.generate.answer.before@3=kill",
        "rpc.reprompt.answer.before@3=kill",
        "controller.step.computed@2=kill",
    )
    replay(job, run_twice(job, *points))
