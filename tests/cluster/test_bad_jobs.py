"""Every wrong job is refused by the API server or by the operator, and none gets a pod.

The cases are those of `ppojob validate` (tests/unit/api/bad_specs.txt). What the API server takes,
the operator refuses with the very lines of that command; what it refuses, it refuses by the name of
the same field.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bad_specs import GOOD_JOB, Case, changed_job, read_table
from cluster_access import Cluster, eventually
from operator_replica import Operator

from ppojob_api import validation
from ppojob_api.manifest import to_yaml
from ppojob_operator.conditions import sanitized

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CASES = read_table()
OTHER_WORDS = {"apiVersion": "version"}
"""What kubectl calls a field itself, which never reaches the API server."""
NO_JSON = "json: unsupported value"
"""Neither does a number that is none, of which kubectl knows no place."""


@dataclass
class Sent:
    name: str  # empty where it has none
    wheres: tuple[str, ...]  # paths that `ppojob validate` names
    lines: tuple[str, ...]  # that it prints
    refusal: str = ""  # why it was not taken; empty where it was
    status: dict[str, Any] = field(default_factory=dict)  # of a job that was taken, in the end


@pytest.fixture(scope="module")
def operator(cluster, crd, tmp_path_factory) -> Iterator[Operator]:
    one = Operator(cluster, tmp_path_factory.mktemp("operators"), "strict")
    yield one
    one.end()


@pytest.fixture(scope="module")
def sent(cluster: Cluster, operator: Operator, tmp_path_factory) -> Mapping[str, Sent]:
    """All cases, sent by one command; again alone those that it tells of without their file."""
    folder = tmp_path_factory.mktemp("cases")
    files = {folder / f"{number:04}.yaml": case for number, case in enumerate(CASES)}
    found = {case.name: written(file, case) for file, case in files.items()}
    said = cluster.outcome("create", f"--filename={folder}")
    taken = set(re.findall(r"^ppojob.ppojob.dev/(\S+) created$", said, re.MULTILINE))
    why = told(said)
    for file, case in files.items():
        if found[case.name].name not in taken:
            alone = ("create", f"--filename={file}")
            found[case.name].refusal = why.get(file.name) or cluster.outcome(*alone)

    def all_have_failed() -> bool:
        listed = cluster.get("ppojobs")["items"]
        by_name = {one["metadata"]["name"]: one.get("status", {}) for one in listed}
        for one in found.values():
            if not one.refusal:
                one.status = by_name[one.name]
        return all(by_name[name].get("phase") == "Failed" for name in taken)

    eventually(all_have_failed, 120)
    return found


def written(file: Path, case: Case) -> Sent:
    """Write the job of a case, under a name of its own where the case gives none."""
    job = changed_job(case.changes)
    if (job.get("metadata") or {}).get("name") == GOOD_JOB["metadata"]["name"]:
        job["metadata"]["name"] = f"case-{file.stem}"
    problems = validation.validate(job)
    assert isinstance(problems, list)
    file.write_text(to_yaml(job))
    return Sent(
        name=str((job.get("metadata") or {}).get("name", "")),
        wheres=tuple(problem.where for problem in problems),
        lines=tuple(str(problem) for problem in problems),
    )


def told(said: str) -> dict[str, str]:
    """What kubectl says of each file that it names, by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in said.splitlines(keepends=True):
        named = re.search(r"/(\d{4}\.yaml)\b", line)
        # The reasons of one stand on lines below, indented or behind a star.
        if named or not line.startswith((" ", "*", "\n")):
            name = named[1] if named else ""
        if name:
            found[name] = found.get(name, "") + line
    return found


def is_named(where: str, refusal: str) -> bool:
    """Whether a refusal names a field, or its section and what is wrong in it."""
    parts = where.split(".")
    sections = [".".join(parts[:length]).split("[")[0] for length in range(2, len(parts) + 1)]
    word = OTHER_WORDS.get(where, parts[-1].split("[")[0])
    return any(section in refusal for section in sections) or word in refusal


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_job_is_refused(sent: Mapping[str, Sent], case: Case):
    one = sent[case.name]
    if one.refusal:
        is_told = any(is_named(where, one.refusal) for where in one.wheres)
        assert is_told or NO_JSON in one.refusal, one.refusal
        return
    accepted = next(each for each in one.status["conditions"] if each["type"] == "Accepted")
    assert (accepted["status"], one.status["reason"]) == ("False", "InvalidSpec")
    if one.wheres == ("status",):
        # The API server takes no status from an author; what is left has nowhere to write.
        assert one.status["message"].startswith("spec.checkpoint.volume: got nothing")
        return
    assert one.status["message"] == sanitized("; ".join(one.lines))


def test_none_of_them_got_anything(cluster: Cluster, sent: Mapping[str, Sent]):
    taken = [one.name for one in sent.values() if not one.refusal]
    assert len(taken) >= 20, "what only the operator refuses is worth the test"
    made = "statefulsets,pods,services,secrets,serviceaccounts,roles,networkpolicies"
    assert cluster.kubectl("get", made, "--selector=ppojob.dev/job", "--output=name") == ""


FILES = {
    "a tab": ("\tseed: 1", "cannot start any token"),
    "a control character": ('seed: "\x07"', "control characters are not allowed"),
    "a boolean in quotes": ('lifecycle: {suspend: "false"}', "spec.lifecycle.suspend"),
    "too many variables": (
        f"pods: [{{env: [{', '.join(f'{{name: A{i}, value: b}}' for i in range(10_000))}]}}]",
        "spec.pods[0].env",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_refused(cluster: Cluster, operator: Operator, name: str):
    content, words = FILES[name]
    text = to_yaml({**GOOD_JOB, "metadata": {"name": "file"}}).replace(
        "spec:\n", f"spec:\n  {content}\n"
    )
    assert words in cluster.refused("create", "--filename=-", stdin=text)


def test_what_decides_the_weights_and_where_they_are_stays(cluster: Cluster, operator: Operator):
    spec = {**GOOD_JOB["spec"], "lifecycle": {"suspend": True}}
    good = {**GOOD_JOB, "metadata": {"name": "stays"}, "spec": spec}
    cluster.apply(good)
    for change in (
        {"seed": 7},
        {"algorithm": {"samplesPerPrompt": 4}},
        {"rollout": {"temperature": 0.5}},
        {"checkpoint": {"volume": {"claimName": "other"}}},
    ):
        patch = json.dumps({"spec": change})
        why = cluster.refused("patch", "ppojob", "stays", "--type=merge", f"--patch={patch}")
        assert f"spec.{next(iter(change))}" in why
        assert "cannot change" in why


@pytest.mark.parametrize("cosine", ["optimizer", "critic", None])
def test_the_length_of_a_run_stays_where_it_decides_the_weights(cluster, operator, cosine):
    optimizer = {"schedule": "cosine"}
    sections = {"optimizer": optimizer, "critic": {"optimizer": optimizer}}
    given = {cosine: sections[cosine]} if cosine else {}
    algorithm = {**GOOD_JOB["spec"]["algorithm"], "type": "ppo"}
    spec = {**GOOD_JOB["spec"], "lifecycle": {"suspend": True}, "algorithm": algorithm, **given}
    name = f"length-{cosine or 'constant'}"
    cluster.apply({**GOOD_JOB, "metadata": {"name": name}, "spec": spec})
    patch = ("patch", "ppojob", name, "--type=merge")
    lasts = '--patch={"spec": {"steps": {"total": 30}}}'
    if cosine is None:
        cluster.kubectl(*patch, lasts)
        return
    assert "spec.steps.total decides the weights" in cluster.refused(*patch, lasts)
    passes = '--patch={"spec": {"steps": {"total": null, "epochs": 2}}}'
    assert "spec.steps.epochs decides the weights" in cluster.refused(*patch, passes)
    cluster.kubectl(*patch, '--patch={"spec": {"steps": {"validateEvery": 5}}}')


def test_an_edit_that_leaves_no_room_for_the_warm_up_is_refused(cluster, operator):
    spec = {**GOOD_JOB["spec"], "lifecycle": {"suspend": True}, "optimizer": {"warmupSteps": 20}}
    cluster.apply({**GOOD_JOB, "metadata": {"name": "warm"}, "spec": spec})
    patch = '--patch={"spec": {"steps": {"total": 19}}}'
    why = cluster.refused("patch", "ppojob", "warm", "--type=merge", patch)
    assert "spec.optimizer.warmupSteps: Invalid value: the run makes fewer optimizer steps" in why


def test_a_name_is_free_when_its_job_is_gone(cluster: Cluster, operator: Operator):
    head = {"name": "lingers", "finalizers": ["example.com/of-somebody-else"]}
    spec = {**GOOD_JOB["spec"], "lifecycle": {"suspend": True}}
    cluster.apply({**GOOD_JOB, "metadata": head, "spec": spec})
    cluster.kubectl("delete", "ppojob", "lingers", "--wait=false")
    text = to_yaml({**GOOD_JOB, "metadata": {"name": "lingers"}, "spec": spec})
    assert "object is being deleted" in cluster.refused("create", "--filename=-", stdin=text)
    patch = json.dumps({"metadata": {"finalizers": None}})
    cluster.kubectl("patch", "ppojob", "lingers", "--type=merge", f"--patch={patch}")
