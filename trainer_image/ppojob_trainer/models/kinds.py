"""What a job uses a model's folder as: which kinds of checkpoints will do, and their heads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import HEAD, Shape, Sizes
from ppojob_trainer.models.families import FAMILIES

TOKENS: Final = "ForTokenClassification"
TEXTS: Final = "ForSequenceClassification"
CLASSIFIERS: Final = (TOKENS, TEXTS)
"""Ends of the names of classes with a head of one number, of tokens with a bias."""
SCORE_WEIGHT: Final = "score.weight"
SCORE_BIAS: Final = "score.bias"
HEAD_BIAS: Final = "lm_head.bias"

_LANGUAGE_MODEL: Final = "ForCausalLM"
_LANGUAGE_MODELS: Final = (_LANGUAGE_MODEL, "ForConditionalGeneration", "LMHeadModel")
"""Parts of the names of their classes, the second of those that see pictures, the third GPT-2's."""
_DEFAULT_LABELS: Final = 2

Tensors = Iterator[tuple[str, Shape]]


@dataclass(frozen=True, slots=True)
class ModelKind:
    """One use of a model.

    Attributes:
        where: field of the resource that names the folder.
        classes: parts of the names of the classes that config.json may name.
        why: what is wrong with other classes.
        wanted: which model is allowed, for people.
        made_as: end of the name of the class that computes it, which transformers may not have.
        head: tensors that must be there beside the backbone's.
        optional: tensors that may be there, and then have these shapes.
        may_lack: those of them that are made where they are not.
    """

    where: str
    classes: tuple[str, ...]
    why: str
    wanted: str
    made_as: str
    head: Callable[[Sizes], Tensors]
    optional: Callable[[Sizes], Tensors]
    may_lack: frozenset[str] = frozenset()


def label_count(config: Mapping[str, Json]) -> int | None:
    """Labels of a classifier, as transformers reads its config.json; None for another model."""
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


def _score_with_bias(sizes: Sizes) -> Tensors:
    yield from _score(sizes)
    yield SCORE_BIAS, (1,)


def _nothing(_sizes: Sizes) -> Tensors:
    yield from ()


POLICY: Final = ModelKind(
    "spec.model.path",
    _LANGUAGE_MODELS,
    "it is not a causal language model",
    "a model ...ForCausalLM",
    made_as=_LANGUAGE_MODEL,
    head=_output_layer,
    optional=_nothing,
)
CRITIC: Final = ModelKind(
    "spec.critic.path",
    (*_LANGUAGE_MODELS, *CLASSIFIERS),
    "a critic cannot be initialized from it",
    "a language model, or a classifier of tokens or texts with one label",
    made_as=TOKENS,
    head=_nothing,
    optional=_score_with_bias,
    may_lack=frozenset({SCORE_WEIGHT, SCORE_BIAS}),
)
SCORER: Final = ModelKind(
    "spec.model.path",
    (*_LANGUAGE_MODELS, TEXTS),
    "a reward model cannot be initialized from it",
    "a language model, or a classifier of texts with one label",
    made_as=TEXTS,
    head=_nothing,
    optional=_score,
    may_lack=frozenset({SCORE_WEIGHT}),
)
"""The model that is trained to be a reward model."""

REFERENCE: Final = replace(POLICY, where="spec.reference.path")
PROCESS_REWARD: Final = replace(POLICY, where=CRITIC.where)
"""The critic where it is a language model that gives rewards of tokens."""

JUDGE: Final = replace(POLICY, where="spec.judge.path")
"""Another engine computes it, which has layers of its own."""

REWARD: Final = ModelKind(
    "spec.rewardModel.path",
    (TEXTS,),
    "it has no score head",
    "a model ...ForSequenceClassification with one label",
    made_as=TEXTS,
    head=_score,
    optional=_nothing,
)
