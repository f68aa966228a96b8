"""What each layout is tried with: a cover of pairs, or the whole cross.

In the cover each kind of ranks (shards, copies, shared tokens, shared matrix products, stages)
meets each case, scenario and checkpoint that concerns it, under one layout or more; so do families
with shared matrix products, and where they differ from others with shared tokens and stages.
Layouts of two kinds meet what is special where the two come together.
"""

from dataclasses import dataclass

from training_cases import CASES, FAMILIES, LAYOUTS, Case
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
_BY_MATRICES_ALONE = (
    *("qwen2_moe", "mixtral", "olmoe", "glm4_moe", "mistral", "phi3", "smollm3", "olmo2", "olmo3"),
    *("granitemoeshared", "apertus", "hunyuan_v1_dense", "ernie4_5_moe", "stablelm"),
)
"""Of these, the ones whose tokens see others, and whose layers follow each other, as in llama,
Qwen, Granite or Gemma."""
_LONG_ALONE = (
    *("cohere2_moe", "falcon_h1", "granitemoe_swa", "hy_v3", "laguna", "mistral4", "nanochat"),
)
"""Of the whole cross alone."""
ALL_BUT_OF_ONE_KIND = (
    *("even", "spread", "small_micro_batches", "a_rank_without_rows", "long_rows", "full_kl"),
    *("muon", "experts", "adapters", "adapters_recomputed", "dropout", "dropout_recomputed"),
    *("bfloat16", "a_gradient_that_is_not_finite", "mtp", "mtp_recomputed", "adapters_beside_nf4"),
    "adapters_with_lengths",
)
"""Of the whole cross, the cases under layouts of two kinds."""
_SHARED = (
    *("even", "small_micro_batches", "recomputed", "experts", "adapters", "muon", "full_kl"),
    *(
        "experts_by_a_bias",
        "dropout",
        "dropout_recomputed",
        "bfloat16",
        "a_gradient_that_is_not_finite",
    ),
    *("pictures", "outcomes", "partition", "contexts", "supervised", "positives"),
)
_CASES = {
    "2": (
        *(*_SHARED, "even_untied", "other_micro_batches", "a_rank_without_rows", "biases"),
        *(
            "teachers",
            "qwen3_recomputed",
            "experts_recomputed",
            "adapters_recomputed",
            "adapters_with_lengths",
            "adapters_beside_nf4",
            "muon_of_adapters",
            "adapters_beside_whole_layers",
            "shared_keys_recomputed",
            "adapters_of_stacks",
            "partition_beside_adapters",
        ),
        *("sgd", "low_moments", "pictures_in_lines", "mtp", "mtp_by_muon"),
        "pictures_of_told_layers",
    ),
    "s2": (
        *(*_SHARED, "other_micro_batches", "qwen2", "qwen3", "experts_replayed", "long_rows"),
        *("adapters_of_biased_layers", "teacher", "teachers", "pictures_behind_layers"),
        *("adapters_beside_nf4", "pictures_of_glm", "contexts_of_states", "pictures_in_tiles"),
        *("pictures_in_squares", "pictures_in_crops", "pictures_of_gemma_4"),
        "adapters_with_lengths",
    ),
    "t2": (
        *(*_SHARED, "even_untied", "biases", "qwen2", "qwen3", "experts_recomputed", "teacher"),
        *(
            "teachers",
            "adapters_with_lengths",
            "adapters_of_biased_layers",
            "muon_of_adapters",
            "adapters_beside_whole_layers",
            "low_moments",
            "adapters_of_experts",
            "adapters_of_stacks",
            "adapters_of_told_layers",
            "adapters_of_several_with_lengths",
            "adapters_of_halves",
            "adapters_of_latents",
            *("experts_beside_blocks", "experts_behind_no_norm", "a_biased_head"),
        ),
        *("pictures_behind_layers", "pictures_of_glm", "pictures_in_squares"),
        "pictures_of_told_layers",
    ),
    "p3": (
        *(*_SHARED, "even_untied", "spread", "qwen2", "qwen3", "qwen3_recomputed", "sgd"),
        *("experts_replayed", "adapters_recomputed", "long_rows", "pictures_of_glm", "teacher"),
        *("adapters_of_stacks", "adapters_beside_nf4", "pictures_in_squares"),
        *("adapters_with_lengths", "adapters_beside_whole_layers", "pictures_of_gemma_4"),
    ),
    "3": ("small_micro_batches", "spread", "adapters_recomputed", "adapters_beside_nf4"),
    "2x1": ("small_micro_batches", "a_rank_without_rows", "experts", "bfloat16", "mtp_recomputed"),
    "2x2": ("small_micro_batches", "spread", "muon", "a_gradient_that_is_not_finite"),
    "s4": ("small_micro_batches", "long_rows", "experts"),
    "2x1s2": ("small_micro_batches", "long_rows", "dropout", "dropout_recomputed"),
    "t4": (
        *("small_micro_batches", "one_key_head", "adapters_with_lengths", "adapters_recomputed"),
        *("muon", "bfloat16", *SHARED_HEADS),
    ),
    "2x1t2": ("small_micro_batches", "spread", "adapters", "adapters_with_lengths"),
    "s2t2": (
        *("small_micro_batches", "experts", "muon", "full_kl", "dropout", "dropout_recomputed"),
        *("pictures", "one_key_head"),
    ),
    "2p2": (
        "small_micro_batches",
        "spread",
        "full_kl",
        "teachers",
        "a_gradient_that_is_not_finite",
    ),
}
_SCENARIOS = {
    "checkpoint-adapters": (*OF_ONE_KIND, "t4", "2p2"),
    "checkpoint-muon": (*OF_ONE_KIND, "t4", "s2t2"),
    "checkpoint-partition": ("p3", "2p2"),
    "offloaded": (*OF_ONE_KIND, "2x2"),
    "offloaded_adapters": OF_ONE_KIND,
    "offloaded_nf4": ("2",),
    "kept_whole": ("2", "2x1"),
    "kept_whole_adapters": ("2",),
    "value_model": (*OF_ONE_KIND, "s2t2"),
    "value_model_of_adapters": (*OF_ONE_KIND, "2x1"),
    "value_model_of_states": ("s2", "p3"),
    "value_model_of_experts": ("2", "t2"),
    "heads": ("2", "2x1", "s2", "t2", "s2t2"),
}
"""Scenarios that not every layout of the cover is tried with."""
_ONLY = {
    "memory": ("s2", "s4"),
    "memory_of_passes": PIPELINES,
    "heads": WHOLE_HEADS,
    "kept_whole": BY_SHARDS,
    "kept_whole_adapters": BY_SHARDS,
    "collectives": ("3",),
    "offloaded_nf4": ("2", "3"),
    "value_model_of_states": tuple(one for one in WORLDS if LAYOUTS[one].tensor == 1),
}
"""Scenarios that say nothing of other layouts."""
_READ_ELSEWHERE = ("1", "s2t2", "2p2")
_READERS = {"even": OF_ONE_KIND, "adapters": ("t2", "p3"), "muon": ("t2", "p3"), "partition": ()}
"""Who takes up every checkpoint of the cover beside one rank; others those of three layouts, of
`even`."""


@dataclass(frozen=True)
class Cover:
    """What is tried; `whole`: the whole cross, which takes three times as long."""

    whole: bool

    def cases_of(self, layout: str) -> dict[str, Case]:
        """The cases that are run with a layout, by name."""
        is_cut = self.whole or layout == "t2"
        left_out = () if is_cut else _BY_MATRICES_ALONE
        left_out = left_out if self.whole else (*left_out, *_LONG_ALONE)
        families = [name for name in FAMILIES if name not in left_out]
        names = (*_CASES[layout], *families)
        if self.whole:
            names += tuple(CASES) if layout in OF_ONE_KIND else ALL_BUT_OF_ONE_KIND
        return {
            name: CASES[name]
            for name in CASES
            if name in names
            and (name not in FAMILIES or layout in OF_FAMILIES or name in _CASES[layout])
            and not _is_refused(layout, CASES[name])
        }

    def layouts_of(self, scenario: str) -> tuple[str, ...]:
        """The layouts of several ranks that are tried with a scenario."""
        found = _ONLY.get(scenario, WORLDS)
        chosen = found if self.whole else _SCENARIOS.get(scenario, found)
        return tuple(layout for layout in found if layout in chosen)

    def scenarios_of(self, layout: str) -> list[str]:
        """The scenarios that a layout is tried with."""
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
        return reader in _READERS[name] or (name == "even" and writer in _READ_ELSEWHERE)


COVER, WHOLE = Cover(whole=False), Cover(whole=True)
AGAIN = ("small_micro_batches", "bfloat16")
"""What is computed twice on GPUs, to compare the bits."""
_ON_GPUS = (*AGAIN, "recomputed", "adapters", "full_kl")
ON_GPUS = {
    layout: {name: CASES[name] for name in (*_ON_GPUS, *more)}
    for layout, more in {
        "2": ("a_rank_without_rows", "muon", "experts", "pictures"),
        "2x1": (),
        "s2": ("long_rows", "experts_replayed", "pictures_behind_layers", "contexts_of_states"),
        "t2": ("biases", "experts_recomputed", "pictures"),
        "p3": ("spread", "qwen3_recomputed", "pictures", "partition", "contexts"),
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
    return dims.pipeline > 2 and model == "seeing_3"  # whose pictures come behind three layers
