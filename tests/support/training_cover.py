"""What each layout is tried with: a cover of pairs, or the whole cross.

In the cover each kind of ranks (shards, copies, shared tokens, shared matrix products, stages)
meets the cases, scenarios and checkpoints that concern it most, and of families a few that differ
most from llama. Layouts of two kinds meet what is special where the two come together.
"""

from collections.abc import Collection
from dataclasses import dataclass

from training_cases import CASES, FAMILIES, LAYOUTS, VALUE_MODELS, Case
from training_scenarios import SCENARIOS

from ppojob_trainer.models.families import FAMILIES as TABLE

WORLDS = tuple(layout for layout in LAYOUTS if layout != "1")
OF_ONE_KIND = ("2", "s2", "t2", "p3")
WHOLE_HEADS = tuple(layout for layout in WORLDS if LAYOUTS[layout].pipeline == 1)
PIPELINES = tuple(layout for layout in WORLDS if layout not in WHOLE_HEADS)
SAVED = ("even", "adapters", "muon", "partition")
BY_SHARDS = tuple(layout for layout in WHOLE_HEADS if LAYOUTS[layout].tensor == 1)
OF_FAMILIES = ("s2", "t2", "p3")
"""Where each of them is cut by shards and heads, by matrices, and by layers."""
SHARED_HEADS = ("olmo2", "gemma4_text", "stablelm")
"""Families that make or count their key heads in other ways, where tensor ranks share them."""
ALL_BUT_OF_ONE_KIND = (
    *("even", "spread", "small_micro_batches", "a_rank_without_rows", "long_rows", "full_kl"),
    *("muon", "experts", "adapters", "adapters_recomputed", "dropout", "dropout_recomputed"),
    *("bfloat16", "a_gradient_that_is_not_finite", "mtp", "mtp_recomputed", "adapters_beside_nf4"),
    *("adapters_with_lengths", "adapters_with_dropout"),
)
"""Of the whole cross, the cases under layouts of two kinds."""
_MORE = {
    "t4": ("one_key_head", *SHARED_HEADS),
    "s2t2": ("one_key_head", "images"),
    "2p2": ("teachers",),
}
"""What these meet besides."""
_EACH = ("small_micro_batches", "experts", "dropout", "dropout_recomputed")
_CASES = {
    "2": (
        *("small_micro_batches", "even", "recomputed", "a_rank_without_rows", "experts"),
        *("adapters", "muon", "bfloat16", "a_gradient_that_is_not_finite"),
        *("supervised", "positives", "teachers", "mtp", "adapters_beside_nf4"),
        *("muon_of_adapters", "partition_beside_adapters", "low_moments"),
        "adapters_beside_whole_layers",
    ),
    "s2": (
        *(*_EACH, "partition", "experts_replayed", "long_rows", "teacher"),
        *("adapters_with_lengths", "contexts_of_states", "images_behind_layers"),
        "adapters_with_dropout",
        *("images_in_tiles", "qwen3_5_text", "deepseek_v3", "gemma3_text"),
    ),
    "t2": (
        *("small_micro_batches", "dropout", "dropout_recomputed", "adapters", "muon", "full_kl"),
        *("partition", "bfloat16", "a_gradient_that_is_not_finite"),
        *("experts_recomputed", "teacher", "outcomes"),
        *("adapters_with_lengths", "adapters_of_biased_layers"),
        *("adapters_with_dropout", "adapters_with_dropout_behind", "adapters_from_weights"),
        *("adapters_of_stacks", "adapters_of_latents", "adapters_of_halves", "images"),
        *("qwen3_5_text", "granitemoehybrid", "gpt_oss", "deepseek_v3", "gemma4_text"),
        *("lfm2", "cohere2", "gpt2", "minimax_m2", "images_and_states"),
        "images_in_grids",
    ),
    "p3": (
        *(*_EACH, "muon", "full_kl", "partition", "a_gradient_that_is_not_finite"),
        *("even_untied", "qwen3_recomputed", "adapters_with_lengths"),
        *("images", "contexts", "supervised", "qwen3_next", "gpt2"),
    ),
    "2x1": ("small_micro_batches", "a_rank_without_rows", "mtp_recomputed"),
    "2p2": ("small_micro_batches", "spread", "teachers"),
    "t4": ("small_micro_batches", "one_key_head", "olmo2"),
    "s2t2": ("small_micro_batches", "experts", "one_key_head"),
}
_SCENARIOS = {
    "checkpoint-adapters": ("t2", "2p2"),
    "checkpoint-muon": ("2", "s2t2"),
    "checkpoint-partition": ("p3",),
    "offloaded": ("2", "p3"),
    "offloaded_adapters": ("t2",),
    "offloaded_nf4": ("2",),
    "kept_whole": ("2",),
    "kept_whole_adapters": ("2",),
    "export": ("2", "t2", "p3", "t4"),
    "value_model": OF_ONE_KIND,
    "value_model_of_adapters": ("2", "t2"),
    "value_model_of_states": ("s2",),
    "value_model_of_experts": ("t2",),
    "heads": ("2", "t2", "s2t2"),
    "memory": ("s2",),
    "memory_of_passes": ("p3",),
}
"""Scenarios that not every layout of the cover is tried with."""
_ONLY = {
    "memory": ("s2", "s4"),
    "memory_of_passes": PIPELINES,
    "heads": WHOLE_HEADS,
    "kept_whole": BY_SHARDS,
    "kept_whole_adapters": BY_SHARDS,
    "collectives": ("p3",),
    "offloaded_nf4": ("2", "3"),
    "value_model_of_states": tuple(one for one in WORLDS if LAYOUTS[one].tensor == 1),
}
"""Scenarios that say nothing of other layouts."""
_OF_SCENARIOS = ("tied", "untied", "biased", "dropout", "phi3", "seeing_3")
"""Models that scenarios load, or cases for their teachers."""
_READ = {"even": ("1", "2", "2p2"), "adapters": ("t2",), "muon": ("2",), "partition": ()}
"""Whose checkpoints the layouts of one kind take up in the cover."""


@dataclass(frozen=True)
class Cover:
    """What is tried; `whole`: the whole cross, which takes five times as long."""

    whole: bool

    @property
    def worlds(self) -> tuple[str, ...]:
        """The layouts of several ranks that are tried at all."""
        return WORLDS if self.whole else tuple(layout for layout in WORLDS if layout in _CASES)

    def cases_of(self, layout: str) -> dict[str, Case]:
        """The cases that are run with a layout, by name."""
        names: Collection[str] = _CASES.get(layout, ())
        if self.whole:
            of_one_kind = CASES if layout in OF_FAMILIES else CASES.keys() - FAMILIES.keys()
            of_two = (*ALL_BUT_OF_ONE_KIND, *_MORE.get(layout, ()))
            names = of_one_kind if layout in OF_ONE_KIND else of_two
        return {
            name: case
            for name, case in CASES.items()
            if name in names and not _is_refused(layout, case)
        }

    @property
    def models(self) -> set[str]:
        """What its cases and scenarios load."""
        cases = (case for layout in self.worlds for case in self.cases_of(layout).values())
        critics = (own["model_name"] for own in VALUE_MODELS.values() if "model_name" in own)
        return {*_OF_SCENARIOS, *critics, *(case.model for case in cases)}

    def layouts_of(self, scenario: str) -> tuple[str, ...]:
        found = _ONLY.get(scenario, WORLDS)
        chosen = found if self.whole else _SCENARIOS.get(scenario, found)
        return tuple(layout for layout in self.worlds if layout in found and layout in chosen)

    def scenarios_of(self, layout: str) -> list[str]:
        return [name for name in SCENARIOS if layout in self.layouts_of(name)]

    def writers_of(self, name: str) -> tuple[str, ...]:
        """The layouts that leave a checkpoint of a case."""
        return ("1", *self.layouts_of(f"checkpoint-{name}"))

    def reads(self, reader: str, name: str, writer: str) -> bool:
        """Whether a layout takes up the checkpoint that another one leaves of a case."""
        if writer not in self.writers_of(name):
            return False
        if self.whole:
            return name == "even" or reader in OF_ONE_KIND
        return reader in OF_ONE_KIND and writer in _READ[name] and writer != reader


COVER, WHOLE = Cover(whole=False), Cover(whole=True)
AGAIN = ("small_micro_batches", "bfloat16")
"""What is computed twice on GPUs, to compare the bits."""
_ON_GPUS = (*AGAIN, "recomputed", "adapters", "full_kl")
ON_GPUS = {
    layout: {name: CASES[name] for name in (*_ON_GPUS, *more)}
    for layout, more in {
        "2": ("a_rank_without_rows", "muon", "experts", "images"),
        "2x1": (),
        "s2": ("long_rows", "experts_replayed", "images_behind_layers", "contexts_of_states"),
        "t2": ("biases", "experts_recomputed", "images"),
        "p3": ("spread", "qwen3_recomputed", "images", "partition", "contexts"),
        "2t2e2": ("experts", "experts_recomputed"),
    }.items()
}
"""What each layout is tried with where ranks have GPUs."""


def _is_refused(layout: str, case: Case) -> bool:
    dims, model = LAYOUTS[layout], case.model
    family = TABLE.get(model)
    if dims.tensor > 1 and case.lora is not None and case.lora.base_type is not None:
        return True
    if dims.pipeline > 1 and model in ("gemma4_text", "seeing_told"):  # they take keys of others
        return True
    if dims.pipeline > 1 and family and (family.positions or family.norms_embeddings):
        return True
    if model.endswith("with_mtp"):
        return dims.sequence * dims.tensor * dims.pipeline > 1
    return dims.pipeline > 2 and model == "seeing_3"  # whose images come behind three layers
