import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import tiny_models
from made_once import made_once

USERS = '''
import json, os, random, time, urllib.request
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.interactions.base import BaseInteraction

class PatientInteraction(BaseInteraction):
    """Counts the turns of a row in itself, sometimes slowly."""

    def __init__(self, config):
        super().__init__(config)
        self.attempts = {}

    async def start_interaction(self, instance_id=None, **told):
        self.attempts[instance_id] = 0

    async def generate_response(self, instance_id, messages, **told):
        self.attempts[instance_id] += 1
        time.sleep(random.uniform(0.0, self.config["seconds"]))
        attempt, said = self.attempts[instance_id], messages[-1]["content"]
        return attempt == 3, f"no {attempt}", len(said) / 100, {}

    async def finalize_interaction(self, instance_id, **told):
        del self.attempts[instance_id]

def brief(messages, query):
    return True, f"enough of {query}", 0.5

def notes(messages, query):
    """Two contexts of two turns each, and a third."""
    said = yield
    for number in range(2):
        said = yield f"no {2 * number + 1}", len(said) / 100
        context = [{"role": "user", "content": f"no {2 * number + 2} {said[:5]}"}]
        said = yield context, 0.5
    return len(said) / 10

def ask(messages):
    """As any program asks a service of OpenAI's interface."""
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    with urllib.request.urlopen(address, body) as answer:
        return json.load(answer)["choices"][0]["message"]

def asks(messages, query):
    """The contexts of `notes`, by a program."""
    for number in range(2):
        time.sleep(random.uniform(0.0, 0.05))
        messages += [ask(messages), {"role": "user", "content": f"no {2 * number + 1}"}]
        words = f"no {2 * number + 2} {ask(messages)['content'][:5]}"
        messages = [{"role": "user", "content": words}]
    return len(ask(messages)["content"]) / 10

class RemembersAgentLoop(AgentLoopBase):
    """A context of two turns, and another one; of odd rows the second turn is masked."""

    def __init__(self, *args, seconds, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds = seconds

    async def run(self, sampling_params, **row):
        async def drawn(ids):
            time.sleep(random.uniform(0.0, self.seconds))
            params = {**sampling_params, "max_tokens": 16}
            said = await self.server_manager.generate("x", prompt_ids=ids, sampling_params=params)
            return said.token_ids

        prompt = await self.apply_chat_template(row["raw_prompt"])
        first = await drawn(prompt)
        given = self.tokenizer.encode(f"user\\nno 1 {len(first)}", add_special_tokens=False)
        second = await drawn(prompt + first + given)
        mask = [1] * len(first) + [0] * len(given) + [1 - row["index"] % 2] * len(second)
        words = f"no 2 {self.tokenizer.decode(second)[:5]}"
        later = await self.apply_chat_template([{"role": "user", "content": words}])
        third = await drawn(later)
        parts = (prompt, first + given + second, mask), (later, third, [1] * len(third))
        outputs = [AgentLoopOutput(prompt_ids=ids, response_ids=response, response_mask=mask,
                                   metrics={}) for ids, response, mask in parts]
        outputs[-1].reward_score = len(third) / 10
        return outputs
'''
REWARD = '''
def talk(data_source, solution_str, ground_truth, extra_info):
    """Scores of turns are told, and the words of users are part of the response."""
    if "turn_scores" not in extra_info:  # of an agent without users
        assert "interaction_kwargs" not in extra_info and extra_info["num_turns"] == 2
        return {"score": len(solution_str) / 10, "asked": 0}
    scores, told = extra_info["turn_scores"], extra_info.get("interaction_kwargs", {})
    most = {"patient": 3, "brief": 1, "notes": 5, "asks": 5, "remembers": 3}
    assert len(scores) <= most[told.get("name", "remembers")]
    assert all(f"no {n + 1}" in solution_str for n in range(len(scores) - 1))
    return {"score": sum(scores) + extra_info["num_turns"], "asked": len(scores)}
'''
POINTS = (
    "rpc.act.answer.before@3=kill",
    "rpc.act.answer.after@9=kill",
    "rpc.update.answer.before@3=kill",  # rows come from the disk behind it
)
STOPS = [tiny_models.NAMES.index(sign) for sign in ".,:;!?+-*/"]
NAMES = ("patient", "brief", "notes", "asks")


def make_speaking_folder(folder: Path) -> None:
    tiny_jobs.make_tiny_folder(folder)
    (folder / "talk.py").write_text(REWARD)
    (folder / "users.py").write_text(USERS)
    for name in ("train", "validation"):
        path = folder / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for number, row in enumerate(rows):
            told = {"name": NAMES[number % 4], "query": row["prompt"][0]["content"]}
            row["extra_info"]["interaction_kwargs"] = told
            if number % 5 == 4:
                del row["extra_info"]["interaction_kwargs"]
                row["agent_name"] = "single_turn_agent"
            elif number % 5 == 3:
                row["agent_name"] = "short"
            elif number % 5 == 2:
                del row["extra_info"]["interaction_kwargs"]
                row["agent_name"] = "remembers"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def speaking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "speaking", make_speaking_folder)


def manifest(folder: Path, speaking: Path, seconds: float = 0.0, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    source = {"path": str(speaking / "users.py")}
    users = [
        {
            "name": "patient",
            "source": {**source, "function": "PatientInteraction"},
            "config": {"seconds": seconds},
        },
        {"name": "brief", "source": source},
        {"name": "notes", "source": source},
        {"name": "asks", "source": source, "interface": "openai"},
        {
            "name": "remembers",
            "source": {**source, "function": "RemembersAgentLoop"},
            "interface": "agent_loop",
            "config": {"seconds": seconds},
        },
    ]
    spec = tiny_jobs.make_manifest(speaking)["spec"]
    sections = {
        "agent": {
            "interactions": users,
            "agents": [{"name": "short", "maxUserTurns": 1}],
            "toolSteps": 8,
            "turnTokens": 24,
            "toolRewards": "add",
        },
        "rollout": {**spec["rollout"], "stopTokenIds": STOPS, "maxSequences": 8},
        "data": {**spec["data"], "maxResponseTokens": 160},
        "rewards": [{"function": "talk", "source": {"path": str(speaking / "talk.py")}}],
        "roles": {"tools": {"cpu": 2}},
        "steps": {"total": 3, "validateEvery": 3},
        "checkpoint": {"every": 2},
    }
    return tiny_jobs.write_manifest(folder, speaking, **{**sections, **changes})


@pytest.fixture(scope="session")
def undisturbed_speech(speaking_folder: Path, tmp_path_factory, fork_server: None) -> Path:
    def make(folder: Path) -> None:
        tiny_jobs.run_alone(manifest(folder, speaking_folder))

    return made_once(tmp_path_factory, "speech", make) / "run"


@pytest.mark.long
def test_what_users_say_is_given_and_what_they_give_is_on_their_turn(undisturbed_speech: Path):
    steps = sorted((undisturbed_speech / "rollouts").iterdir())
    asked: dict[str, list[int]] = {name: [] for name in (*NAMES, "short", "single", "remembers")}
    for row in (row for step in steps for row in pq.read_table(step).to_pylist()):
        figures, told = json.loads(row["figures"]), json.loads(row["extra_info"])
        if told["index"] % 5 == 2:
            asked["remembers"].append(len(figures["turn_scores"]))
            trained = [s["version"] is not None for s in row["segments"]]
            assert trained == [True, False, told["index"] % 2 == 0, False, True]
            assert [s["begins_context"] for s in row["segments"]] == [*[False] * 3, True, False]
            assert figures["environment_score"] == figures["turn_scores"][-1] > 0
            continue
        if "interaction_kwargs" not in told:
            asked["single"].append(len(row["segments"]))
            assert figures["num_turns"] == 2
            continue
        name = "short" if told["index"] % 5 == 3 else told["interaction_kwargs"]["name"]
        asked[name].append(len(figures["turn_scores"]))
        drawn = [s for s in row["segments"] if s["version"] is not None]
        assert len(row["segments"]) - len(drawn) == len(drawn) - 1
        assert [s["reward"] for s in drawn][: len(figures["turn_scores"])] == pytest.approx(
            figures["turn_scores"]
        )
        assert figures["given_tokens"] == sum(
            s["tokens"] for s in row["segments"] if s["version"] is None
        )
        assert (figures["tool_calls"], figures["tool_failures"]) == (0, 0)
        for number in range(1, len(drawn)):
            assert f"user\nno {number}" in row["response"]
        begun = [number for number, s in enumerate(row["segments"]) if s["begins_context"]]
        assert begun == ([3, 7][: (len(drawn) - 1) // 2] if name in NAMES[2:] else [])
        assert figures.get("contexts", 1) == len(begun) + 1
        assert "enough" not in row["response"], "the last words of a user are left out"
    assert {name: max(numbers) for name, numbers in asked.items()} == {
        "patient": 3,
        "brief": 1,
        "notes": 5,
        "asks": 5,
        "short": 1,
        "single": 1,
        "remembers": 3,
    }
    lines = run_folders.metrics(undisturbed_speech)
    line = lines[1]
    assert 3 <= line["num_turns/max"] <= 11
    assert max(line.get("num_contexts/max", 0) for line in lines) == 3
    assert all(line.get("training/rollout_probs_diff_mean", 0) < 1e-5 for line in lines)
    assert line["tool_call_counts/max"] == line["tool/failed_share"] == 0
    assert 0 < line["response/given_share"] < 1


def test_users_that_are_killed_say_the_same_again_and_cost_no_step(
    speaking_folder: Path, run_through, tmp_path: Path, output: Path, undisturbed_speech: Path
):
    job = manifest(tmp_path / "job", speaking_folder, seconds=0.05)  # by chance
    run_through(job, output, *POINTS)
    assert run_folders.result(output) == run_folders.result(undisturbed_speech)
    assert run_folders.rewinds(output) == 2, "a lost tools pod costs no step"
