import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import agent_jobs
import container_engine
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import tiny_models
import torch
from answering_service import Answer, services
from made_once import made_once
from ruamel.yaml import YAML
from tiers import first_in_test
from transformers import AutoModelForCausalLM, AutoTokenizer

from ppojob_trainer.agents.formats.search_r1 import INVALID, information

ROWS = 16


@pytest.fixture(scope="session")
def talking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "talking", agent_jobs.make_talking_folder)


def manifest(
    folder: Path,
    talking: Path,
    seconds: float = 0.0,
    function: str = "add",
    agent: Mapping[str, object] | None = None,
    source: Mapping[str, object] | None = None,
    **changes: object,
) -> Path:
    """Write the manifest of a job with a tool, and the tool, unless something else answers."""
    folder.mkdir(exist_ok=True)
    tools = agent_jobs.write_tools(folder, seconds)
    source = source or {"path": str(tools), "function": function}
    sections = agent_jobs.talking(talking, source, **(agent or {}))
    return tiny_jobs.write_manifest(folder, talking, **{**sections, **changes})


@pytest.fixture(scope="session")
def undisturbed_talk(talking_folder: Path, tmp_path_factory, fork_server: None) -> Path:
    def make(folder: Path) -> None:
        tiny_jobs.run_alone(manifest(folder, talking_folder))

    return made_once(tmp_path_factory, "talk", make) / "run"


@pytest.mark.vllm
def test_engine_and_trainer_agree_on_rows_of_many_turns(start, talking_folder, tmp_path, output):
    """With vLLM's cache of prefixes; the trainer's numbers are those of a plain forward pass."""
    rollout = {"engine": "vllm", "kvCacheGib": 0.25, "dtype": "float32"}
    rollout |= {"stopTokenIds": agent_jobs.STOPS}
    one = {"steps": {"total": 1}, "checkpoint": {"every": 1}}
    job = manifest(tmp_path, talking_folder, rollout=rollout, **one)
    start(job, output).succeed()
    model = AutoModelForCausalLM.from_pretrained(talking_folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(talking_folder / "model")
    table = pq.read_table(output / "rollouts" / "step-000001.parquet").to_pylist()
    turns = []
    for row in table:
        prompt = tokenizer.encode(row["prompt"], add_special_tokens=False)
        assert len(prompt) == row["prompt_tokens"]
        ids = torch.tensor([prompt + row["response_ids"]])
        with torch.inference_mode():
            logprobs = model.eval()(ids).logits[0, :-1].log_softmax(-1)
        told = logprobs.gather(1, ids[0, 1:, None])[-len(row["response_ids"]) :, 0].tolist()
        versions = [s["version"] for s in row["segments"] for _ in range(s["tokens"])]
        for engine, trainer, version in zip(row["rollout_logprobs"], told, versions, strict=True):
            assert version is None or engine == pytest.approx(trainer, abs=1e-5)
        turns.append(sum(s["version"] is not None for s in row["segments"]))
    assert max(turns) >= 5
    line = run_folders.metrics(output)[-1]
    assert line["training/rollout_probs_diff_mean"] < 1e-5


def test_what_is_trained_kept_and_told(undisturbed_talk: Path):
    table = pq.read_table(undisturbed_talk / "rollouts" / "step-000001.parquet").to_pylist()
    assert len(table) == ROWS
    talked = [row for row in table if len(row["segments"]) > 1]
    assert talked, "no row called its tool"
    for row in table:
        drawn = [s for s in row["segments"] if s["version"] is not None]
        given = [s for s in row["segments"] if s["version"] is None]
        assert len(drawn) - len(given) in (0, 1)
        assert sum(s["tokens"] for s in row["segments"]) == row["response_tokens"] <= 96
        assert row["figures"] is not None
        start_of = 0
        for segment in row["segments"]:
            part = slice(start_of, start_of + segment["tokens"])
            start_of = part.stop
            drawn_with = row["rollout_logprobs"][part]
            assert all(value < 0 for value in drawn_with) == (segment["version"] is not None)
    line = run_folders.metrics(undisturbed_talk)[1]
    assert line["num_turns/max"] > 2
    assert run_folders.metrics(undisturbed_talk)[0]["val-aux/num_turns/mean"] >= 2
    assert line["tool_call_counts/mean"] > 0
    assert line["timing_s/agent_loop/tool_calls/max"] > 0
    assert 0 < line["response/given_share"] < 1
    assert line["reward_extra/calls/mean"] == line["tool_call_counts/mean"]
    assert any("add" in text for text in [row["response"] for row in talked])


@pytest.mark.long
def test_containers_of_rows_give_what_workspaces_give(start, tmp_path: Path):
    """By a stand-in for docker."""
    folder, runs = agent_jobs.make_commanding_folder(tmp_path / "made"), []
    (containers := tmp_path / "engine").mkdir()
    engine = f"{sys.executable} {container_engine.__file__}"
    variables = {"PPOJOB_CONTAINER_COMMAND": engine, "CONTAINERS": str(containers)}
    for name, more in (("workspaces", {}), ("containers", {"containers": {"image": "debian:12"}})):
        (tmp_path / name).mkdir()
        sections = agent_jobs.commanding(folder, **more)
        sections["sandbox"] = {"timeLimitSeconds": 60}
        job = tiny_jobs.write_manifest(tmp_path / name, folder, **sections)
        start(job, tmp_path / name / "run", **variables).succeed()
        runs.append(tmp_path / name / "run")
    results = [run_folders.result(run) for run in runs]
    assert results[0] == results[1]
    table = pq.read_table(runs[1] / "rollouts" / "step-000001.parquet")
    assert set(table["score"].to_pylist()) == {0.0, 1.0}
    assert list(containers.iterdir()) == []


@pytest.mark.long
def test_an_mcp_server_answers_though_a_tools_pod_is_killed(
    talking_folder: Path, run_through, tmp_path: Path, output: Path
):
    program = str(Path(tiny_jobs.__file__).with_name("mcp_server.py"))
    serving = [sys.executable, program, "http"]
    server = subprocess.Popen(serving, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/mcp"
        printed = subprocess.run(
            [sys.executable, "-m", "ppojob_cli", "tools", "--mcp", url],
            check=True,
            capture_output=True,
            text=True,
        )
        of_server = YAML(typ="safe").load(printed.stdout)["agent"]
        job = manifest(tmp_path / "job", talking_folder, agent=of_server, steps={"total": 2})
        run_through(job, output, "rpc.act.answer.before@3=kill")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    table = pq.read_table(output / "rollouts" / "step-000001.parquet").to_pylist()
    figures = [json.loads(row["figures"]) for row in table]
    assert sum(own["tool_calls"] for own in figures) > 0
    assert not any(own["tool_failures"] for own in figures)


KILLED = {
    "ranks and controller": (
        "rpc.generate.answer.before@2=kill",
        "rpc.update.answer.before@5=kill",
        "controller.step.computed@2=kill",
    ),
    "tools": ("rpc.act.answer.before@3=kill", "rpc.act.answer.after@9=kill"),
    "everything": ("rpc.act.answer.after@12=kill_group",),
}


@pytest.mark.parametrize("points", first_in_test(KILLED, "everything"))
def test_killed_anywhere_a_conversation_ends_as_if_nothing_had_been(
    points, talking_folder, run_through, tmp_path: Path, output: Path, undisturbed_talk: Path
):
    """Nor does the latency of its tool change a bit, which is another for each call."""
    run_through(manifest(tmp_path / "job", talking_folder, seconds=0.01), output, *points)
    assert run_folders.result(output) == run_folders.result(undisturbed_talk)
    if points == KILLED["tools"]:
        assert run_folders.rewinds(output) == 1, "a lost tools pod costs no step"


@pytest.mark.long
def test_engines_in_pods_of_their_own_call_a_service(
    talking_folder, run_through, tmp_path: Path, output: Path, undisturbed_talk: Path
):
    """Ranks of engines call it; that it is no function changes no bit."""

    def add(asked: dict[str, int]) -> Answer:
        body = {"text": str(asked["a"] + asked["b"]), "reward": 0.25}
        return 200, body, {"Content-Type": "application/json"}

    points = ("rpc.transfer_rows.answer.before@2=kill", "rpc.act.answer.before@9=kill")
    with services("/add") as serve:
        source = {"url": serve(add).url}
        job = manifest(tmp_path / "job", talking_folder, source=source, roles={"rollout": {}})
        run_through(job, output, *points, seconds=600)
    assert run_folders.result(output) == run_folders.result(undisturbed_talk)


@pytest.mark.long
def test_a_tool_that_never_says_the_same_is_asked_once_for_what_was_kept(
    talking_folder, run_through, replay, tmp_path: Path, output: Path
):
    job = manifest(tmp_path / "job", talking_folder, function="draw", checkpoint={})
    run_through(job, output, "controller.step.computed@3=kill", "rpc.update.answer.before@7=kill")
    calls = (tmp_path / "job" / "calls").read_text()
    replay(job, output)
    assert (tmp_path / "job" / "calls").read_text() == calls


@pytest.mark.parametrize(
    ("roles", "max_staleness", "points"),
    [
        pytest.param(
            {},
            2,
            (
                "rpc.act.answer.before@9=kill",
                "rpc.generate.answer.before@2=kill",
                "rpc.update.answer.before@3=kill",
                "rows.under_way.rename.after@2=kill",
            ),
            id="beside a step",
        ),
        pytest.param(
            {"rollout": {}},
            3,
            (
                "rpc.act.answer.after@12=kill",
                "rpc.generate.answer.after@4=kill",
                "controller.step.computed@3=kill",
                "rpc.save_shards.answer.after@2=kill",
            ),
            id="ahead of it",  # so are the conversations that a teacher reads, below
            marks=pytest.mark.long,
        ),
    ],
)
def test_conversations_go_on_with_newer_weights(
    roles, max_staleness, points, talking_folder, run_twice, tmp_path: Path
):
    """Turns are compared as they began from the same: no kill and no latency changes a bit.

    Each row has an environment, which is lost with its process and made again.
    """
    sections = agent_jobs.talking(talking_folder, {})
    compared = {"type": "gigpo", "promptsPerStep": 4, "samplesPerPrompt": 4}
    rollout = {**sections["rollout"], "maxStaleness": max_staleness, "maxSequences": 64}
    job = manifest(
        tmp_path / "job",
        talking_folder,
        seconds=0.01,
        function="Till.add",
        rollout=rollout,
        roles=roles,
        algorithm=compared,
        steps={"total": 6, "validateEvery": 6},
    )
    calm = run_twice(job, *points)
    lines = run_folders.metrics(calm)[1:]
    assert not run_folders.unnamed(lines)
    assert all(0.0 < line["critic/turns_compared"] <= 1.0 for line in lines)
    assert max(line["async/staleness_max"] for line in lines) in range(1, max_staleness + 1)
    turns, scores = 0, set[float]()
    for step in range(1, 7):
        for row in run_folders.rows(calm, step):
            figures = json.loads(row["figures"])
            assert figures["environment_score"] or not figures["tool_rewards"]
            scores.add(figures["environment_score"])
            versions = [s["version"] for s in row["segments"]]
            drawn = [version for version in versions if version is not None]
            assert drawn == sorted(drawn)
            turns += len(set(drawn)) > 1 and None in versions
    assert turns, "no conversation went on with newer weights"
    assert len(scores) > 2


@pytest.fixture(scope="session")
def searching_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "searching", agent_jobs.make_searching_folder)


def searching_job(
    folder: Path, searching: Path, config: dict[str, object], **agent: object
) -> Path:
    folder.mkdir(exist_ok=True)
    sections = agent_jobs.searching(searching, config, **agent)
    return tiny_jobs.write_manifest(folder, searching, **sections)


@pytest.fixture(scope="session")
def undisturbed_search(searching_folder: Path, tmp_path_factory, fork_server: None) -> Path:
    index = {"index": str(searching_folder / "index")}

    def make(folder: Path) -> None:
        tiny_jobs.run_alone(searching_job(folder, searching_folder, index))

    return made_once(tmp_path_factory, "search", make) / "run"


def test_search_r1_is_told_what_it_has_found_and_what_was_no_action(undisturbed_search: Path):
    names = [*tiny_models.NAMES, *tiny_models.SEARCHES, *tiny_models.ANSWERS]
    seen = set()
    table = pq.read_table(undisturbed_search / "rollouts" / "step-000001.parquet")
    for row in table.to_pylist():
        texts, start_of = [], 0
        for segment in row["segments"]:
            ids = row["response_ids"][start_of : start_of + segment["tokens"]]
            texts.append("".join(names[i] for i in ids))
            start_of += segment["tokens"]
        for drawn, given in zip(texts[::2], [*texts[1::2], ""], strict=True):
            _, is_search, query = drawn.partition("<search>")
            if is_search:
                number = query.removesuffix("</search>").removeprefix("town ")
                assert given in ("", information(f'Doc 1(Title: "T") town {number}'))
            elif "</answer>" in drawn:
                assert drawn.endswith("</answer>")
                assert not given
            else:
                assert given in ("", INVALID)
            seen.add(given and given[:5])
        assert json.loads(row["figures"])["tool_failures"] == 0
    assert seen == {"", information("")[:5], INVALID[:5]}


@pytest.mark.long
def test_a_retriever_of_its_own_finds_the_same_and_may_be_killed(
    searching_folder, run_through, tmp_path, output: Path, undisturbed_search: Path
):
    retriever = {"index": str(searching_folder / "index")}
    job = searching_job(tmp_path / "job", searching_folder, {}, retriever=retriever)
    run_through(job, output, "rpc.act.answer.before@2=kill", "rpc.act.answer.after@7=kill")
    assert run_folders.result(output) == run_folders.result(undisturbed_search)
    assert not list((output / "logs").glob("*-tools-*"))
    assert run_folders.rewinds(output) == 1, "a lost retriever pod costs no step"


@pytest.mark.long
def test_a_teacher_reads_a_prompt_of_its_own_before_a_conversation(
    run_twice, replay, talking_folder: Path, tmp_path: Path
):
    """Row by row as transformers; drawn steps ahead in pods apart, killed, and replayed."""
    lines = (talking_folder / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        (question,) = row["prompt"]
        row["hint"] = [{"role": "user", "content": f"{question['content']}+1+2"}]
    data = tmp_path / "hinted.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = agent_jobs.talking(talking_folder, {})
    job = manifest(
        tmp_path / "job",
        talking_folder,
        agent={"toolRewards": None},
        data={
            "train": [{"path": str(data)}],
            "teacherPromptKey": "hint",
            "maxPromptTokens": 64,
            "maxResponseTokens": 96,
        },
        algorithm={"type": "distillation", "promptsPerStep": 4, "samplesPerPrompt": 4},
        rewards=[],
        rollout={**sections["rollout"], "maxStaleness": 2},
        roles={"rollout": {}},
        steps={"total": 4},
    )
    points = ("generate.answer.before@3", "forward.answer.before@3", "act.answer.before@5")
    whole = run_twice(job, *(f"rpc.{point}=kill" for point in points))
    model = AutoModelForCausalLM.from_pretrained(talking_folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(talking_folder / "model")

    @torch.inference_mode()
    def mean_logprob(prompt: str, row: Mapping[str, list]) -> float:
        before = tokenizer.encode(prompt, add_special_tokens=False)
        ids = torch.tensor([before + row["response_ids"]])
        said = model.eval()(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        drawn = [s["version"] is not None for s in row["segments"] for _ in range(s["tokens"])]
        return float(said[-len(drawn) :][torch.tensor(drawn)].mean())

    found = {row["row"]: row["advantage"] for row in run_folders.rows(whole, 1, "advantages")}
    expected = {}
    for row in run_folders.rows(whole, 1):
        (question,) = rows[row["prompt_id"]]["prompt"]
        hinted = row["prompt"].replace(question["content"], f"{question['content']}+1+2")
        expected[row["row"]] = mean_logprob(hinted, row) - mean_logprob(row["prompt"], row)
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(len(row["segments"]) for row in run_folders.rows(whole, 1)) > 2
    replay(job, whole)
