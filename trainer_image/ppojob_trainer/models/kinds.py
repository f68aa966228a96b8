"""Model kinds: the uses of a folder, the classes of checkpoints that fit, and their heads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import HEAD, Shape, Sizes
from ppojob_trainer.models.families import FAMILIES

TOKENS: Final = "ForTokenClassification"
TEXTS: Final = "ForSequenceClassification"
CLASSIFIERS: Final = (TOKENS, TEXTS)
"""Suffixes of the names of classes with a one-output head; those of tokens have a bias."""
SCORE_WEIGHT: Final = "score.weight"
SCORE_BIAS: Final = "score.bias"
HEAD_BIAS: Final = "lm_head.bias"

_LANGUAGE_MODEL: Final = "ForCausalLM"
_LANGUAGE_MODELS: Final = (_LANGUAGE_MODEL, "ForConditionalGeneration", "LMHeadModel")
"""Class names' suffixes; the second of vision-language models, the third of GPT-2."""
_DEFAULT_LABELS: Final = 2

Tensors = Iterator[tuple[str, Shape]]


@dataclass(frozen=True, slots=True)
class ModelKind:
    """One use of a model."""

    where: str  # field of the resource that names the folder
    classes: tuple[str, ...]  # parts of the class names that config.json may name
    why: str  # what is wrong with other classes
    wanted: str  # which model is allowed, for people
    made_as: str  # suffix of the class that computes it, which transformers may not have
    head: Callable[[Sizes], Tensors]  # tensors that are required in addition to the backbone's
    optional: Callable[[Sizes], Tensors] = lambda _: iter(())  # tensors that are allowed
    may_lack: frozenset[str] = frozenset()  # those of them that are created if missing


def label_count(config: Mapping[str, Json]) -> int | None:
    """Count a classifier's labels, as transformers reads its config.json; None if it is none."""
    names = config.get("architectures")
    if not isinstance(names, list) or not any(str(name).endswith(CLASSIFIERS) for name in names):
        return None
    labels, number = config.get("id2label"), config.get("num_labels")
    if isinstance(labels, dict):
        return len(labels)
    return number if isinstance(number, int) else _DEFAULT_LABELS


def _output_layer(sizes: Sizes) -> Tensors:
    if not sizes.is_tied:
        yield HEAD, (sizes.vocabulary, sizes.hidden)
    if FAMILIES[sizes.model_type].has_head_bias:
        yield HEAD_BIAS, (sizes.vocabulary,)


def _score(sizes: Sizes) -> Tensors:
    yield SCORE_WEIGHT, (1, sizes.hidden)


POLICY: Final = ModelKind(
    "spec.model.path",
    _LANGUAGE_MODELS,
    "it is not a causal language model",
    "a model ...ForCausalLM",
    made_as=_LANGUAGE_MODEL,
    head=_output_layer,
)
CRITIC: Final = ModelKind(
    "spec.critic.path",
    (*_LANGUAGE_MODELS, *CLASSIFIERS),
    "a critic cannot be initialized from it",
    "a language model, or a classifier of tokens or texts with one label",
    made_as=TOKENS,
    head=lambda _: iter(()),
    optional=lambda sizes: iter([*_score(sizes), (SCORE_BIAS, (1,))]),
    may_lack=frozenset({SCORE_WEIGHT, SCORE_BIAS}),
)
SCORER: Final = ModelKind(
    "spec.model.path",
    (*_LANGUAGE_MODELS, TEXTS),
    "a reward model cannot be initialized from it",
    "a language model, or a classifier of texts with one label",
    made_as=TEXTS,
    head=lambda _: iter(()),
    optional=_score,
    may_lack=frozenset({SCORE_WEIGHT}),
)
"""The reward model under training."""

REFERENCE: Final = replace(POLICY, where="spec.reference.path")
PROCESS_REWARD: Final = replace(POLICY, where=CRITIC.where)
"""The critic of type prime: a language model that returns per-token rewards."""

JUDGE: Final = replace(POLICY, where="spec.judge.path")
"""Served by vLLM, with its own layers."""

REWARD: Final = ModelKind(
    "spec.rewardModel.path",
    (TEXTS,),
    "it has no score head",
    "a model ...ForSequenceClassification with one label",
    made_as=TEXTS,
    head=_score,
)
