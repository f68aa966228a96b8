import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bad_specs import GOOD_JOB
from ruamel.yaml import YAML

from ppojob_api import crd, run_config, shape, validation
from ppojob_api.rules import RULES, Rule, cel
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_trainer.json_value import without_nulls

# What an API server takes in a structural schema, out of all of JSON schema.
STRUCTURAL_KEYS = {
    *("additionalProperties", "default", "description", "enum", "format", "items", "pattern"),
    *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "properties", "required"),
    *(f"{side}{what}" for side in ("max", "min") for what in ("Items", "Length", "Properties")),
    *("type", "x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields"),
    "x-kubernetes-validations",
}


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


NODES = dict(nodes(crd.schema()))


def test_fits_the_annotation_of_client_side_apply() -> None:
    """All annotations of an object take 256 KiB together; 32 of them are for others."""
    written = json.dumps(crd.definition(), separators=(",", ":"))
    escaped = sum(5 * written.count(sign) for sign in "<>&")  # as Go writes them: \u003c
    assert len(written) + escaped < 224 * 1024


def test_bounds_that_are_left_out_are_whole_numbers() -> None:
    """An API server cuts 0.5 to 0 where it compares it with a whole number."""
    for path, node in NODES.items():
        for side in ("minimum", "maximum"):
            if node.get(f"exclusive{side.title()}"):
                assert node[side] == int(node[side]), path


def test_structural() -> None:
    for path, node in NODES.items():
        assert set(node) <= STRUCTURAL_KEYS, path
        assert "type" in node, path
        if node["type"] == "object" and path != ".metadata":
            closed = {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"}
            assert len(closed & set(node)) == 1, path
        # The cost of rules is estimated from these.
        if node["type"] == "array":
            assert "maxItems" in node, path
        if path.startswith(".spec") and node["type"] == "string" and "enum" not in node:
            assert "maxLength" in node or "pattern" in node, path


def test_every_field_of_the_models_is_there_and_described() -> None:
    schema_paths = {path.removeprefix(".").replace("[]", "") for path in NODES}
    for path in shape.all_paths():
        assert path in schema_paths or path.startswith("metadata.")
    for path, node in NODES.items():
        if path and not path.endswith("[]") and path not in {".apiVersion", ".kind", ".metadata"}:
            assert node.get("description"), path


def test_every_rule_stands_in_its_section() -> None:
    written = sum(len(node.get("x-kubernetes-validations", [])) for node in NODES.values())
    assert written == len(crd.SERVER_RULES)
    for rule in crd.SERVER_RULES:
        path = "." + rule.section if rule.section else ""
        assert rule.expression in [r["rule"] for r in NODES[path]["x-kubernetes-validations"]]
        assert "\n" not in rule.message


def test_no_rule_reads_what_has_no_form() -> None:
    """An API server takes no rule on what it knows no members or size of."""
    for path, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", []):
            looked_into = re.sub(r"\bself(\.[\w.]+) == oldSelf\1\b", "", rule["rule"])
            looked_into = re.sub(r"\bdyn\(self\.\w+\)", "", looked_into)
            for read in re.findall(r"(?<!has\()\bself((?:\.\w+)+)", looked_into):
                names = read.split(".")
                places = [path + ".".join(names[:end]) for end in range(1, len(names) + 1)]
                found = [NODES.get(place, {}) for place in places]
                assert not any("x-kubernetes-preserve-unknown-fields" in one for one in found), rule


COSINE = {"optimizer": {"schedule": "cosine"}}
RATIO = {"critic": {"optimizer": {"warmupRatio": 0.1}}}
VOLUME = {"checkpoint": {"volume": {"claimName": "a"}}}
EDITS: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({}, {"steps": {"total": 40}, "checkpoint": {"every": 5}}, set()),
    ({}, {"seed": 1, "rollout": {"temperature": 0.5}}, {"spec.seed", "spec.rollout"}),
    # A section that may be absent is neither given, taken away nor changed.
    ({}, {"critic": {}}, {"spec.critic"}),
    ({"agent": {}}, {}, {"spec.agent"}),
    ({"rewardModel": {"path": "a"}}, {"rewardModel": {"path": "b"}}, {"spec.rewardModel"}),
    # A controller with another volume would find no checkpoint, and ranks that write to the old
    # one.
    ({}, VOLUME, {"spec.checkpoint.volume"}),
    (VOLUME, {}, {"spec.checkpoint.volume"}),
    (VOLUME, {"checkpoint": {"volume": {"claimName": "b"}}}, {"spec.checkpoint.volume"}),
    (VOLUME, {"checkpoint": {"volume": {"size": "1Gi"}}}, {"spec.checkpoint.volume"}),
    ({}, {"scheduling": {"type": "volcano"}}, {"spec.scheduling.type"}),
    # A length decides the learning rates of a cosine, or of a share of it as warm-up.
    (COSINE, {**COSINE, "steps": {"total": 40}}, {"spec.steps.total"}),
    (RATIO, {**RATIO, "steps": {"epochs": 2}}, {"spec.steps.total", "spec.steps.epochs"}),
    # Ranks without a trainer cannot begin to train.
    ({"steps": {"validateOnly": True}}, {}, {"spec.steps.validateOnly"}),
    ({}, {"steps": {"total": 20, "generateOnly": True}}, {"spec.steps.generateOnly"}),
]


GPU = {"actorRollout": {"gpusPerReplica": 1}}
WRITTEN_OUT = {"training": {"autocast": "none"}, "rollout": {"dtype": "float32"}}
JUDGED = {
    "rewards": [{"function": "judge"}],
    "judge": {"path": "/models/judge", "maxTokens": 8, "kvCacheGib": 1.0},
}
SCORED = {"rewardModel": {"path": "/models/scorer"}}
LAYOUTS: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({}, {"roles": {"actorRollout": {"replicas": 2, "offload": ["weights"]}}}, {"spec.roles"}),
    ({"roles": {"rollout": {"replicas": 2}}}, {}, {"spec.roles"}),
    (WRITTEN_OUT, {**WRITTEN_OUT, "roles": GPU}, {"spec.roles"}),
    ({}, {"training": {"reshardAfterForward": False}}, {"spec.training"}),
    (
        {"training": {"microBatchTokens": 5}},
        {"training": {"logprobChunkTokens": 5}},
        {"spec.training"},
    ),
    ({}, {"rollout": {"parallelism": {"tensor": 2}}}, {"spec.rollout"}),
    ({"rollout": {"gpuMemoryShare": 0.5}}, {"rollout": {"enforceEager": True}}, {"spec.rollout"}),
    (JUDGED, {**JUDGED, "judge": {"path": "/models/judge", "maxTokens": 8}}, {"spec.judge"}),
]
"""What may change while a job is suspended, and the sections that are named until then."""
NEVER: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({}, {"training": {"sharePrompts": False, "microBatchTokens": 5}}, {"spec.training"}),
    ({}, {"rollout": {"temperature": 0.5, "enforceEager": True}}, {"spec.rollout"}),
    ({"rollout": {"maxModelTokens": 300}}, {}, {"spec.rollout"}),
    ({}, {"rollout": {"engineArguments": {"seed": 1}}}, {"spec.rollout"}),
    (JUDGED, {"rewards": JUDGED["rewards"]}, {"spec.judge"}),
    (JUDGED, {**JUDGED, "judge": {"path": "/models/judge"}}, {"spec.judge"}),
    # On GPUs what is auto is bfloat16.
    ({}, {"roles": GPU}, {"spec.roles.actorRollout.gpusPerReplica"}),
    (
        {**WRITTEN_OUT, **SCORED},
        {**WRITTEN_OUT, **SCORED, "roles": GPU},
        {"spec.roles.rewardModel.gpusPerReplica"},
    ),
    (
        {**WRITTEN_OUT, **SCORED, "roles": GPU},
        {**WRITTEN_OUT, **SCORED, "roles": {**GPU, "rewardModel": {"colocateWith": "none"}}},
        {"spec.roles.rewardModel.gpusPerReplica"},
    ),
    (
        JUDGED,
        {**JUDGED, "roles": {"judge": {"gpusPerReplica": 1}}},
        {"spec.roles.judge.gpusPerReplica"},
    ),
]
"""What is refused of a suspended job too."""


def refusals(before: dict[str, Any], after: dict[str, Any], **old: Any) -> list[Rule]:
    """The rules by which an API server refuses an edit; `old` is what else the job has."""
    return refusals_of(*(filled_in(spec, **old) for spec in (before, after)))


def filled_in(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job with every default, also within items of lists."""
    job = PPOJob.model_validate({**GOOD_JOB, "spec": GOOD_JOB["spec"] | spec, **more})
    return job.model_dump(mode="json", exclude_none=True)


def refusals_of(was: dict[str, Any], now: dict[str, Any]) -> list[Rule]:
    found = []
    for rule in (rule for rule in RULES if rule.is_of_edits):
        scope = {"self": now, "oldSelf": was}
        for key in filter(None, rule.section.split(".")):
            scope = {name: value[key] for name, value in scope.items()}
        if not cel.read(rule.expression).value(scope):
            found.append(rule)
    return found


def refused_of(before: dict[str, Any], after: dict[str, Any], **old: Any) -> set[str]:
    found = refusals(before, after, **old)
    return {".".join(filter(None, (rule.section, rule.field))) for rule in found}


@pytest.mark.parametrize(("before", "after", "refused"), EDITS)
def test_edits_that_would_change_a_run_are_refused(before, after, refused: set[str]):
    assert refused_of(before, after) == refused


IN_LISTS: dict[str, Any] = {
    "data": {
        name: [{"path": "/data/a.parquet"}, {"path": "/data/b.parquet"}]
        for name in ("train", "validation", "demonstrations")
    },
    "agent": {
        "tools": [{"name": "find", "source": {"path": "/data/find.py"}}],
        "mcpServers": [{"name": "wiki", "url": "http://wiki"}],
        "egress": [{"cidr": "10.1.0.0/16"}],
        "interactions": [{"name": "user", "source": {"path": "/data/user.py"}}],
    },
    "rewards": [{"function": "exact"}, {"function": "letters"}],
}


FULL = filled_in(IN_LISTS)
"""As API servers had a job whose definition of the resource wrote defaults into items, too."""


def as_given() -> dict[str, Any]:
    """The same job as they have it now."""
    lists = {"spec": GOOD_JOB["spec"] | IN_LISTS}
    return {**FULL, "spec": with_lists_of(lists, FULL)["spec"]}


def test_a_default_that_is_written_in_an_item_is_no_edit() -> None:
    assert as_given() != FULL
    assert refusals_of(FULL, as_given()) == refusals_of(as_given(), FULL) == []


PLACES = [("rewards",), *((part, name) for part in ("data", "agent") for name in IN_LISTS[part])]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_any_other_value_in_an_item_is_an_edit(place: tuple[str, ...]) -> None:
    listed = shape.at(("spec", *place))
    assert listed is not None
    assert listed.item is not None
    assert listed.item.model is not None
    for was, now in ((FULL, as_given()), (as_given(), FULL)):
        for name in shape.members(listed.item.model):
            edited = copy.deepcopy(now)
            list_at(edited, place)[0][name] = "another"
            assert len(refusals_of(was, edited)) == 1, name
            assert len(refusals_of(edited, was)) == 1, name
        longer = copy.deepcopy(now)
        list_at(longer, place).append(list_at(now, place)[0])
        assert len(refusals_of(was, longer)) == 1


def list_at(job: dict[str, Any], place: tuple[str, ...]) -> list[dict[str, Any]]:
    found = job["spec"]
    for name in place:
        found = found[name]
    assert isinstance(found, list)
    return found


SUSPENDED = {"lifecycle": {"suspend": True}}


@pytest.mark.parametrize(("before", "after", "told"), LAYOUTS)
def test_another_layout_is_for_the_next_pods_of_a_suspended_job(before, after, told: set[str]):
    gone = {"phase": "Suspended"}
    assert refused_of(before, after) == told
    assert refused_of(before, after, status=gone) == told
    assert refused_of({**before, **SUSPENDED}, {**after, **SUSPENDED}) == told
    leaving = {"phase": "Running", "reason": "Suspending"}
    assert refused_of({**before, **SUSPENDED}, after, status=leaving) == told
    # It may be let go on by the same edit.
    assert refused_of({**before, **SUSPENDED}, after, status=gone) == set()


@pytest.mark.parametrize(("before", "after", "refused"), NEVER)
def test_what_decides_the_weights_is_no_layout(before, after, refused: set[str]):
    edit = {**before, **SUSPENDED}, {**after, **SUSPENDED}
    assert refused_of(*edit, status={"phase": "Suspended"}) == refused


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"training": {"sharePrompts": False}}),
        ({}, {"rollout": {"temperature": 0.5}}),
        (JUDGED, {"rewards": JUDGED["rewards"]}),
        (JUDGED, {**JUDGED, "judge": {**JUDGED["judge"], "path": "/models/other"}}),
    ],
)
def test_who_changes_what_decides_the_weights_is_not_told_to_suspend_the_job(before, after):
    told = [one.message for one in refusals(before, after)]
    assert len([one for one in told if "decides the weights" in one]) == 1
    assert not [one for one in told if "may change" in one]


def test_what_decides_the_weights_has_a_rule_where_it_cannot_vanish() -> None:
    edited = [rule for rule in RULES if rule.is_of_edits]
    sections = {rule.section for rule in edited} - {"spec", ""}
    above = {rule.field for rule in edited if rule.section == "spec"}
    above |= {rule.field.removeprefix("spec.") for rule in edited if not rule.section}
    for section in sections:
        name = section.removeprefix("spec.")
        assert name in NODES[".spec"]["required"] or "default" in NODES[f".{section}"]
    watched = above | {section.removeprefix("spec.") for section in sections}
    assert watched >= set(run_config.TRAJECTORY_SECTIONS)


@pytest.mark.parametrize(("before", "after", "_"), LAYOUTS)
def test_a_checkpoint_is_taken_up_where_an_edit_is_let_through(before, after, _: set[str]):
    one, other = trajectory(before), trajectory(after)
    assert one["spec"] == other["spec"]


@pytest.mark.parametrize(("before", "after", "_"), NEVER)
def test_a_checkpoint_is_refused_where_an_edit_is(before, after, _: set[str]):
    assert trajectory(before)["spec"] != trajectory(after)["spec"]


def trajectory(spec: dict[str, Any]) -> Any:
    """What a checkpoint of such a job is held against, on a processor that has bfloat16 not."""
    job = PPOJob.model_validate({**GOOD_JOB, "spec": GOOD_JOB["spec"] | spec})
    config = run_config.resolve(job).on_processor(native_bfloat16=False)
    return json.loads(config.trajectory_json())


def test_defaults_are_the_models() -> None:
    # As an API server fills a job in, so do the models, but for what its author wrote as a list.
    filled = crd_defaults(copy.deepcopy(GOOD_JOB), crd.schema())
    read = PPOJob.model_validate(filled).model_dump(mode="json")
    assert filled == without_nulls(read | {"spec": with_lists_of(filled, read)["spec"]})
    assert PPOJob.model_validate(filled) == PPOJob.model_validate(GOOD_JOB)


def with_lists_of(given: Any, filled: Any) -> Any:
    """What is filled in, with the lists as they were given."""
    if not isinstance(filled, dict) or not isinstance(given, dict):
        return given if isinstance(filled, list) and given is not None else filled
    return {key: with_lists_of(given.get(key), value) for key, value in filled.items()}


def test_nothing_is_written_into_lists() -> None:
    """Clients that merge in their own way replace lists whole, and would find a difference."""
    inside = [path for path, node in NODES.items() if "[]." in path and "default" in node]
    assert inside == []
    for path, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", []) if path.endswith("[]") else []:
            optional = set(node["properties"]) - set(node.get("required", ()))
            read = optional & set(re.findall(r"(?<!has\()\bself\.(\w+)", rule["rule"]))
            assert [name for name in read if f"has(self.{name})" not in rule["rule"]] == [], path


def crd_defaults(value: Any, node: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [crd_defaults(item, node["items"]) for item in value]
    if not isinstance(value, dict) or "properties" not in node:
        return value
    for name, inner in node["properties"].items():
        if name not in value and "default" in inner:
            value[name] = copy.deepcopy(inner["default"])
        if name in value:
            value[name] = crd_defaults(value[name], inner)
    # An API server keeps metadata itself.
    if "metadata" in value:
        value["metadata"] = {"namespace": "default", "labels": {}, "annotations": {}} | value[
            "metadata"
        ]
    return value


def test_defaults_fit_the_schema() -> None:
    for path, node in NODES.items():
        if "default" in node:
            jsonschema.validate(node["default"], draft4(node))
            assert path.startswith((".spec", ".status"))


def test_a_resolved_job_fits_the_schema() -> None:
    judged = validation.validate(GOOD_JOB)
    assert isinstance(judged, PPOJob)
    resolved = (
        run_config.resolve(judged)
        .job()
        .model_dump(mode="json", exclude={"status"}, exclude_none=True)
    )
    jsonschema.validate(resolved, draft4(crd.schema()))


def draft4(node: dict[str, Any]) -> dict[str, Any]:
    """The schema in the dialect that `jsonschema` reads."""
    result = {key: value for key, value in node.items() if not key.startswith("x-")}
    result["$schema"] = "http://json-schema.org/draft-04/schema#"
    if "properties" in node:
        result["properties"] = {k: draft4(v) for k, v in node["properties"].items()}
        result["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if key in node:
            result[key] = draft4(node[key])
    if node.get("type") == "object" and len(node) <= 2:
        result.pop("additionalProperties", None)
    return result


def test_no_default_beside_a_meaning_of_null() -> None:
    """A client that drops nulls would have the default there, and run other numbers."""
    models = [PPOJob]
    for model in models:
        for name, member in shape.members(model).items():
            assert not (member.shape.optional and member.default is not None), f"{model} {name}"
            inner = member.shape.item or member.shape
            models += [inner.model] if inner.model else []


def test_kustomize_is_told_of_every_place_where_a_job_names_an_object() -> None:
    told = YAML(typ="safe").load(Path(__file__).parents[3] / "crds" / "kustomizeconfig.yaml")
    fields = [
        *told["images"],
        *(one for kind in told["nameReference"] for one in kind["fieldSpecs"]),
    ]
    named = re.compile(r"spec\..*(configMap|secret)(\.name)?|spec\..*claimName|spec\.pods\.image")
    places = {path for path in shape.all_paths() if named.fullmatch(path)}
    # Of a section that names it, the name is the place.
    leaves = {one for one in places if f"{one}.name" not in places}
    assert {one["path"].replace("/", ".") for one in fields} == leaves
