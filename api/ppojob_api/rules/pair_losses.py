"""Rules of losses of pairs: which settings have an effect with which, and which go together."""

from collections.abc import Iterable

from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.preferences import PAIR_LOSSES

_SMOOTHED = sorted(name for name, one in PAIR_LOSSES.items() if one.has_smoothing)
_WITH_MARGIN = sorted(name for name, one in PAIR_LOSSES.items() if one.has_margin)
_WITH_TAU = sorted(name for name, one in PAIR_LOSSES.items() if one.has_tau)
_WITHOUT_REFERENCE = sorted(name for name, one in PAIR_LOSSES.items() if not one.has_reference)
_SORTED = sorted(name for name, one in PAIR_LOSSES.items() if one.sorts)
_SUMMED = sorted(set(PAIR_LOSSES) - set(_SORTED))


def _has(names: Iterable[str], section: str = "self") -> str:
    """CEL: whether one of the losses of a section of `DpoSpec` has one of these names."""
    given, weights = words(names), f"{section}.lossWeights"
    weighted = f"!{weights}.all(one, !(one in {given}))"
    return f"({weights}.size() > 0 ? {weighted} : {section}.lossType in {given})"


def _losses(section: str = "self") -> str:
    """CEL: the name of the loss of such a section, or the names of several."""
    weights = f"{section}.lossWeights"
    return f"{weights}.size() > 0 ? {weights}.map(one, one) : {section}.lossType"


PAIR_RULES = rules(
    """
    $DPO | lossType | NoEffect | here
        lossWeights names the losses; remove it, or lossWeights
    when: self.lossWeights.size() > 0

    $DPO | lossWeights | NotOneOf | here
        no loss of this name can be a term of a sum; some of $SUMMED_NAMES (sft is sftWeight)
    must: self.lossWeights.all(one, one in $SUMMED)

    $DPO | lossWeights | Conflict | here
        $WITHOUT_REFERENCE_NAMES use no reference, and the others do; only these, or only others
    must: self.lossWeights.all(one, one in $WITHOUT_REFERENCE)
        || self.lossWeights.all(one, !(one in $WITHOUT_REFERENCE))

    $DPO | labelSmoothing | NoEffect | here
        it has no effect with lossType ${$LOSSES}; remove it, or one of $SMOOTHED_NAMES
    when: !$HAS_SMOOTHED

    $DPO | labelSmoothing | OutOfRange | here
        robust learns nothing if half of the labels are flipped; below 0.5
    when: $HAS_ROBUST
    must: self.labelSmoothing < 0.5

    $DPO | targetMargin | NoEffect | here
        it has no effect with lossType ${$LOSSES}; remove it, or $MARGIN_NAMES
    when: !$HAS_MARGIN

    $DPO | discopopTau | NoEffect | here
        it has no effect with lossType ${$LOSSES}; remove it, or $TAU_NAMES
    when: !$HAS_TAU

    $DPO | divergence | NoEffect | here
        lossType ${$LOSSES} uses no reference; remove it
    when: $HAS_NO_REFERENCE

    $DPO | divergenceAlpha | NoEffect | here
        it has no effect with divergence ${self.divergence}; remove it, or divergence: alpha
    when: self.divergence != 'alpha'

    spec.algorithm.dpo | divergence weightByPolicy | Conflict | here
        $SORTED_NAMES compare log-ratios of different pairs; remove it, or another lossType
    when: self.lossType in $SORTED

    spec.algorithm.onlineDpo | lossType | NotInThisVersion | here
        $SORTED_NAMES with generated pairs: not in this version; another one
    must: !(self.lossType in $SORTED)

    spec | reference roles.reference | NoEffect | here
        dpo.lossType ${$GIVEN_LOSSES} uses no reference; remove it
    when: self.algorithm.type == 'dpo' && $GIVEN_HAS_NO_REFERENCE

    spec | reference roles.reference algorithm.kl.referenceRefresh | NoEffect | here
        onlineDpo.lossType ${$DRAWN_LOSSES} uses no reference; remove it
    when: self.algorithm.type == 'online_dpo' && $DRAWN_HAS_NO_REFERENCE
    """,
    DPO="spec.algorithm.dpo spec.algorithm.onlineDpo",
    DRAWN_HAS_NO_REFERENCE=_has(_WITHOUT_REFERENCE, "self.algorithm.onlineDpo"),
    DRAWN_LOSSES=_losses("self.algorithm.onlineDpo"),
    GIVEN_HAS_NO_REFERENCE=_has(_WITHOUT_REFERENCE, "self.algorithm.dpo"),
    GIVEN_LOSSES=_losses("self.algorithm.dpo"),
    HAS_MARGIN=_has(_WITH_MARGIN),
    HAS_NO_REFERENCE=_has(_WITHOUT_REFERENCE),
    HAS_ROBUST=_has(["robust"]),
    HAS_SMOOTHED=_has(_SMOOTHED),
    HAS_TAU=_has(_WITH_TAU),
    LOSSES=_losses(),
    MARGIN_NAMES=" or ".join(_WITH_MARGIN),
    SMOOTHED_NAMES=", ".join(_SMOOTHED),
    SORTED=words(_SORTED),
    SORTED_NAMES=" and ".join(_SORTED),
    SUMMED=words(_SUMMED),
    SUMMED_NAMES=", ".join(_SUMMED),
    TAU_NAMES=" or ".join(_WITH_TAU),
    WITHOUT_REFERENCE=words(_WITHOUT_REFERENCE),
    WITHOUT_REFERENCE_NAMES=", ".join(_WITHOUT_REFERENCE),
)
