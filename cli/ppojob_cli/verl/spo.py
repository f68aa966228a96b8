"""Conversions of the recipe SPO, whose values of prompts take the place of an estimator."""

from typing import Final

from ppojob_cli.verl.draft import Draft, Verl

_TRACKING: Final = "trainer.spo"


def is_on(verl: Verl) -> bool:
    """Whether the recipe does more than its trainer would without it."""
    return bool(verl[f"{_TRACKING}.enable"])


def tracked_values(verl: Verl, job: Draft) -> None:
    """The estimator, and how it forgets; which prompts are drawn is told."""
    job.set("spec.algorithm.type", "spo", f"{_TRACKING}.enable")
    kind, decay = f"{_TRACKING}.rho.type", f"{_TRACKING}.rho.value"
    if verl[kind] == "constant":
        job.keep(kind)
        job.copy(decay)
    else:
        why = "what was known of a prompt fades by a constant at each visit"
        job.leave_out(why, kind)
        job.note(f"{why} here, by the KL since the last one there", f"{_TRACKING}.enable")
    prompts = "data.gen_batch_size"
    if verl.is_given(prompts) and verl[prompts] != verl["data.train_batch_size"]:
        job.leave_out("prompts are drawn in their order, and not by how sure they are", prompts)
