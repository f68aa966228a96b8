"""docs/from-verl.md speaks of fields that exist, forgets none, and says what messages say."""

import re
from pathlib import Path

from bad_specs import changed_job
from every_field import field_paths

from ppojob_api import foreign_names, shape, suggestions
from ppojob_api.parsing import parse
from ppojob_api.run_config import TRAJECTORY_SECTIONS

DOCUMENT = Path(__file__).parents[3] / "docs" / "from-verl.md"
FIELDS = {path for path in shape.all_paths() if not path.startswith("status")}
SECTIONS = set(TRAJECTORY_SECTIONS) - {"seed"}

# What verl has no key for.
OURS = field_paths(
    """
spec.data: answerKey chosenKey curriculum.key curriculum.order dataSource demonstrationAnswerKey
spec.data: demonstrationPromptKey demonstrations guidanceKey labelKey marginKey
spec.data: maxTeacherPromptTokens rejectedKey splitPairs teacherPromptKey textPrompts
spec.algorithm: certaintyReward distillation.reprompt dpo entropyControl gigpo groupFilter guidance
spec.algorithm: highEntropyShare kl.referenceRefresh kl.unbiased kto maskTruncated
spec.algorithm: offPolicyThreshold onlineDpo positiveExamples ppo.criticLambda
spec.algorithm: ppo.lengthAdaptiveAlpha ppo.whitenRewards rewardModel scoreClip supervised
spec.algorithm: truncationPenalty
spec.algorithm: custom policyLoss.custom  # there a module's imports
spec.algorithm: distillation.beta  # of a divergence that verl has not
spec.algorithm.kl.lossTerm: coefficient estimator  # at that of a KL in the loss alone
spec.algorithm.policyLoss: flowrl  # whose numbers stand in the recipe's code
spec.algorithm.policyLoss: ipo primeRl trajectoryBalance vespo
# verl has one key for all of its losses, which stands at that of the clipped one.
spec.algorithm.policyLoss: cispo.clipHigh cispo.clipLow clipCov.clipHigh clipCov.clipLow
spec.algorithm.policyLoss: dppoKl.divergenceHigh dppoKl.divergenceLow dppoTv.divergenceHigh
spec.algorithm.policyLoss: dppoTv.divergenceLow geoMean.clipHigh geoMean.clipLow gspo.clipHigh
spec.algorithm.policyLoss: gspo.clipLow
# verl has one key for a number or a pair.
spec.algorithm: policyLoss.dppoKl.ratioLimit policyLoss.dppoTv.ratioLimit
spec.algorithm: rolloutCorrection.weightFloor
spec.model: averageDecay
spec.model.lora: baseType dropout experts init modulesToSave rankStabilized
spec.critic.lora: baseType dropout experts init modulesToSave rankStabilized
spec.optimizer: loraPlusRatio power
spec.critic.optimizer: loraPlusRatio power
spec.rewards: errorScore onError source.configMap source.package timeLimitSeconds weight
spec.rewardModel: mean
spec.rollout: drafts kvCacheGib stopStrings stopTokenIds structuredOutput
spec.rollout.validation: minP repetitionPenalty
spec.training: sharePrompts skipZeroGradientGroups
spec.roles: actorRollout.cpu actorRollout.ranksPerReplica actorRollout.threadsPerRank rollout
spec.roles: judge.cpu judge.replicas retriever.cpu retriever.replicas reward.replicas tools.cpu
spec.roles: tools.replicas
# Which key of a reward model is one of a judge's, a function beside it decides.
spec.judge: dtype gpuMemoryShare kvCacheGib maxTokens path
spec.roles.judge: gpusPerReplica
spec.agent: cutTurns toolFailure toolSteps tools.timeLimitSeconds turnTokens
"""
)


def rows() -> list[tuple[str, str, str]]:
    """verl's names, each with the section that it stands in, our field, and the remark."""
    found, section = [], ""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("## "):
            section = f"{line[3:]}." if re.fullmatch(r"[\w.]+", line[3:]) else ""
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and not cells[0].startswith(("verl", "---")):
            verl = re.sub(r"`([\w.]+?)(\.\*)?`", rf"`{section}\1`", cells[0])
            found.append((verl, cells[2], cells[3].strip("| ") if len(cells) > 3 else ""))
    return found


ROWS = rows()


def named(text: str) -> list[str]:
    names = re.findall(r"`((?:spec|metadata)\.[\w.\[\]]*)`", text)
    return [name.replace("[]", "") for name in names]


def above(name: str) -> list[list[str]]:
    """A name and those of the sections that it stands in, the nearest first."""
    words = name.split(".")
    return [words[:length] for length in range(len(words), 0, -1)]


def test_messages_say_what_a_row_says() -> None:
    assert len(ROWS) > 250
    for verl, ours, remark in ROWS:
        fields, names = named(ours), re.findall(r"`([\w.]+)`", verl)
        assert verl
        assert fields or ours in {"not yet", "not needed"}, verl
        assert FIELDS.issuperset(fields + named(remark)), verl
        for name in names:
            is_told(name, ours)


def is_told(name: str, ours: str) -> None:
    told, *_ = filter(None, map(suggestions.foreign_field, above(name)))
    quoted = re.findall(r"`([^`]*)`", ours)
    assert (told.status or sorted(told.here)) == (sorted(quoted) or ours), name
    if shape.at(("spec", *name.split("."))) is not None:
        return  # what is called alike
    _, problems, _ = parse(changed_job([f"spec.{name}: 1"]), ())
    places = {one.where: str(one) for one in problems}
    said = places.get(f"spec.{name}")
    if said is None:  # it is told of the section
        assert any(f"spec.{'.'.join(words)}" in places for words in above(name)), name
        return
    assert all(field in said for field in quoted), name
    assert ours != "not yet" or said.endswith("not in this version; remove it"), name
    assert ours != "not needed" or "not needed: " in said, name


def test_fields_of_the_table_exist() -> None:
    tables = [*foreign_names.fields().values(), *foreign_names.words().values()]
    for row in (row for table in tables for row in table):
        said = re.findall(r"(?:spec|metadata)\.[\w.\[\]]*\w", " ".join((*row.here, row.remark)))
        assert {field.replace("[]", "") for field in said} <= FIELDS
    for field, words in foreign_names.words().items():
        found = shape.at(tuple(field.split(".")))
        choices = found and (found.item or found).choices
        assert choices, field
        assert {word for row in words for word in row.here} <= set(choices), field


def test_a_name_stands_once() -> None:
    tables = foreign_names.fields().values()
    names = [name for table in tables for row in table for name in row.names]
    assert sorted(set(names)) == sorted(names)


def test_every_field_that_verl_knows_is_in_the_table() -> None:
    mentioned = {field for _, ours, _ in ROWS for field in named(ours)} | OURS
    for field in FIELDS:
        top = field.split(".")[1] if field.startswith("spec.") else ""
        inner = any(other.startswith(f"{field}.") for other in FIELDS)
        below = any(field.startswith(f"{other}.") for other in mentioned)
        if top in SECTIONS and not inner and not below:
            assert field in mentioned


def test_fields_named_in_the_prose_and_ours_exist() -> None:
    assert OURS | set(named(DOCUMENT.read_text())) <= FIELDS
