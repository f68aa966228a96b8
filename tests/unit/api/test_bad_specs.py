"""Every wrong setting gives its own line, word for word: the table is bad_specs.txt."""

import json

import pytest
from bad_specs import GOOD_JOB, Case, changed_job, read_table

from ppojob_api import validation
from ppojob_api.problem import Problem
from ppojob_api.well_known import BUILT_IN_INTERACTIONS, BUILT_IN_SCORERS, BUILT_IN_TOOLS
from ppojob_trainer.rewards.routing import SCORERS
from ppojob_trainer.tools.built_in import TOOLS, USERS

CASES = read_table()


def test_the_job_that_the_cases_change_is_good() -> None:
    assert not isinstance(validation.validate(GOOD_JOB), list)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_setting(case: Case) -> None:
    problems = validation.validate(changed_job(case.changes))
    assert isinstance(problems, list), "nothing was found"
    assert [f"{p.reason_code} {p}" for p in problems] == list(case.expected)
    for problem in problems:
        assert all((problem.where, problem.got, problem.why, problem.allowed))
        assert "\n" not in str(problem)
        assert str(problem).isprintable()


@pytest.mark.parametrize("tool", [name for name, one in TOOLS.items() if one.opens is not None])
def test_built_in_tools_that_read_settings_may_have_some(tool: str) -> None:
    agent = f"spec.agent: {{tools: [{{name: {tool}, config: {{readable: [/opt]}}}}]}}"
    assert not isinstance(validation.validate(changed_job([agent])), list)


def test_judging_does_not_change_the_manifest() -> None:
    value = changed_job(["spec.algorithm.type: grp0", "spec.data.train: [{pth: a}, 5]"])
    before = json.dumps(value)
    validation.validate(value)
    assert json.dumps(value) == before


def test_a_wrong_field_silences_only_the_rules_that_read_it() -> None:
    changes = ['spec.algorithm.promptsPerStep: "16"', "spec.algorithm.miniBatchPrompts: 32"]
    value = changed_job(changes)
    assert places(value) == ["spec.algorithm.promptsPerStep"]
    value["spec"]["steps"]["epochs"] = 2
    assert places(value) == ["spec.algorithm.promptsPerStep", "spec.steps.epochs"]


def test_what_a_server_writes_into_metadata_is_no_mistake() -> None:
    value = changed_job([])
    value["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "7"}
    value["metadata"] |= {"managedFields": [{}], "generation": 3, "uid": "u"}
    assert not isinstance(validation.validate(value), list)


def test_a_file_needs_a_name_and_not_what_a_server_would_make_one_of() -> None:
    value = changed_job([])
    value["metadata"]["generateName"] = "sum-"
    assert not isinstance(validation.validate(value), list)
    del value["metadata"]["name"]
    assert places(value) == ["metadata.name"]


def test_what_is_built_in_is_the_trainers() -> None:
    assert sorted(SCORERS) == list(BUILT_IN_SCORERS)
    assert sorted(TOOLS) == list(BUILT_IN_TOOLS)
    assert sorted(USERS) == list(BUILT_IN_INTERACTIONS)


@pytest.mark.parametrize(
    "changes",
    [
        ["spec.rollout: {engine: huggingface, temperature: 3}"],
        ["spec.rollout.temperature: 0.01"],
        ["spec.algorithm.kl: {in: loss}", "spec.roles.reference: {}"],
        ["spec.algorithm.kl: {in: loss}", "spec.roles.reference: {replicas: 1, parallelism: {}}"],
        ["spec.rollout.parallelism.data: 1"],
        ["spec.roles.actorRollout: {gpusPerReplica: 1, parallelism: {dataShard: 1}}"],
        ["spec.roles.actorRollout: {ranksPerReplica: 4, parallelism: {dataShard: 2}}"],
        [
            "spec.roles.actorRollout.ranksPerReplica: 8",
            "spec.roles.actorRollout.parallelism: {dataShard: 2, sequence: 2}",
            "spec.algorithm.miniBatchPrompts: 4",
        ],
        ["spec.roles.actorRollout: {ranksPerReplica: 4, parallelism: {dataShard: 2, tensor: 2}}"],
        [
            "spec.roles.actorRollout: {ranksPerReplica: 8, parallelism: {tensor: 4}}",
            "spec.algorithm.miniBatchPrompts: 2",
        ],
        [
            "spec.roles.actorRollout: {ranksPerReplica: 4, parallelism: {pipeline: 2}}",
            "spec.algorithm.miniBatchPrompts: 2",
        ],
        # The shortest responses are chosen, whatever they score.
        [
            "spec.algorithm: {type: grpo, promptsPerStep: 16, samplesPerPrompt: 4,"
            " certaintyReward: {}, groupFilter: {keep: 2}}"
        ],
        # Rows of type sft are dealt to those that share them, and to no engine.
        [
            "spec.algorithm: {type: sft, promptsPerStep: 2, samplesPerPrompt: 1}",
            "spec.roles.actorRollout: {ranksPerReplica: 4, parallelism: {sequence: 2}}",
        ],
        # The same file with and without training.
        [
            "spec.algorithm.type: ppo",
            "spec.roles.critic: {colocateWith: none}",
            "spec.steps: {generateOnly: true}",
            "spec.pods: [{roles: [critic, reward], memory: 1Gi}]",
        ],
    ],
)
def test_near_to_wrong_and_right(changes: list[str]) -> None:
    assert not isinstance(validation.validate(changed_job(changes)), list)


def found(value: object) -> list[Problem]:
    problems = validation.validate(value)
    assert isinstance(problems, list)
    return problems


def places(value: object) -> list[str]:
    return [problem.where for problem in found(value)]
