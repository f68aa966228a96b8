"""A job that sets every field of the spec, made from the models, so that it stays complete."""

import copy
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML

from ppojob_api import validation
from ppojob_api.parsing import parse
from ppojob_api.shape import Member, Shape, members, placeholder
from ppojob_api.v1alpha1.job import PPOJobSpec

START: dict[str, Any] = YAML(typ="safe").load(
    """
apiVersion: ppojob.dev/v1alpha1
kind: PPOJob
metadata: {name: every-field}
spec:
  model:
    path: /data/model
    ropeScaling: {type: llama3, factor: 2.0, highFreqFactor: 8.0}
  data:
    train: [{path: /data/a.py, format: python}]
    validation: [{path: /data/b.py, format: python}]
    demonstrations: [{path: /data/c.py, format: python}]
  algorithm:
    type: ppo
    promptsPerStep: 64
    samplesPerPrompt: 4
    miniBatchPrompts: 8
    lossAggregation: sequence_mean_token_sum_norm
    kl: {in: reward, controller: adaptive}
    entropyControl: {maxCoefficient: 1.0}
    scoreClip: {low: -1.0, high: 1.0}
    groupFilter: {keep: 2}
    supervised: {coefficient: 1.0, schedule: cosine, decaySteps: 8}
  optimizer: {schedule: cosine, type: muon}
  reference:
    path: /data/teacher
    teachers: [{path: /data/other, dataSources: [a]}]
  critic: {optimizer: {schedule: cosine, type: muon}, miniBatchPrompts: 8}
  rewards:
  - function: exact
    source: {path: /data/reward.py}
    arguments: {limit: 1, nothing: null, within: [{nothing: null}]}
  rewardModel: {path: /data/reward-model}
  judge: {path: /data/judge}
  agent:
    retriever: {index: /data/index}
    egress: [{cidr: 10.1.0.0/16}]
    tools:
    - name: find
      source: {path: /data/tools.py}
      description: Finds pages.
      parameters: {type: object, properties: {query: {type: string}}}
    - name: search
    interactions: [{name: user, source: {path: /data/users.py}}]
    agents: [{name: x, tools: [search]}]
  roles:
    actorRollout: {replicas: 2, gpusPerReplica: 4}
    rollout: {replicas: 2, gpusPerReplica: 1}
    reference: {colocateWith: none, gpusPerReplica: 4}
    critic: {colocateWith: none, gpusPerReplica: 4}
    rewardModel: {colocateWith: none, gpusPerReplica: 4}
  pods:
  - tolerations: [{key: a, effect: NoExecute}]
    env: [{name: A, value: b}, {name: C, secret: {name: s, key: k}}]
    volumes:
    - {claimName: a, mountPath: /data}
    - {configMap: b, mountPath: /b}
    - {secret: c, mountPath: /c}
    topologySpread: [{topologyKey: zone}]
  scheduling: {type: volcano, volcano: {queue: q}}
  rollout: {validation: {temperature: 0.5, samples: 4}}
  steps: {total: 40, validateEvery: 4}
  checkpoint:
    every: 8
    volume: {claimName: a}
    best: {metric: val-core/a/acc/mean@1}
"""
)
"""What other fields hang on, and text that has to fit other text."""

NUMBERS = (0, 1, 2, 4, 8, 16, 0.5, 1.5, 1_024, 100_000, 2_048)
TEXTS = ("x", "/data/x", "1Gi", "example.com/x")
MAPS = ({"cpu": "2"}, {"metadata": {"labels": {"a": "b"}}})


def every_field() -> tuple[dict[str, Any], list[str]]:
    """The job, every field in it; and the paths of those that have no value but their default.

    Each field in turn gets the first value, other than its default, with which the job is still
    good. Where there is none its default is written out, and null where it has none.
    """
    job, unmoved = copy.deepcopy(START), []
    _fill(job, job["spec"], PPOJobSpec, "spec", unmoved)
    return job, unmoved


def _fill(
    job: dict[str, Any], section: dict[str, Any], model: Any, path: str, unmoved: list[str]
) -> None:
    for name, member in members(model).items():
        where = f"{path}.{name}"
        if name not in section and not _move(job, section, name, member):
            section[name] = member.default
            unmoved.append(where)
        value, item = section[name], member.shape.item
        if isinstance(value, dict) and member.shape.model is not None:
            _fill(job, value, member.shape.model, where, unmoved)
        elif isinstance(value, list) and item is not None and item.model is not None:
            for index, one in enumerate(value):
                _fill(job, one, item.model, f"{where}[{index}]", unmoved)


def _move(job: dict[str, Any], section: dict[str, Any], name: str, member: Member) -> bool:
    for value in _values(member.shape):
        section[name] = copy.deepcopy(value)
        if value != member.default and _is_good(job):
            return True
    return False


def _is_good(job: dict[str, Any]) -> bool:
    """What `validate` says; but a job of which a field is wrong in itself is not judged across."""
    read, problems, _ = parse(job, ())
    return read is not None and not problems and not validation.check(read)


def _values(shape: Shape) -> Iterator[Any]:
    if shape.kind == "boolean":
        yield from (True, False)
    elif shape.kind == "enum":
        yield from shape.choices
    elif shape.kind in {"integer", "number"}:
        yield from NUMBERS
    elif shape.kind == "string":
        yield from TEXTS
    elif shape.kind == "map":
        yield from MAPS
    elif shape.kind == "list" and shape.item is not None:
        times = shape.min_length or 1
        yield from ([value] * times for value in _values(shape.item))
    else:
        yield placeholder(shape)


def field_paths(text: str) -> set[str]:
    """Paths that lines of a section and names in it stand for; comments begin with #."""
    found: set[str] = set()
    for line in text.splitlines():
        section, _, names = line.partition("#")[0].partition(": ")
        found |= {f"{section}.{name}" for name in names.split()}
    return found
