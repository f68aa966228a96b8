"""Conversion of the recipe SPO, whose values of prompts replace an estimator."""

from typing import Final

from ppojob_cli.verl.draft import Draft, Verl

_TRACKING: Final = "trainer.spo"


def is_on(verl: Verl) -> bool:
    """Return whether the recipe's settings have an effect."""
    return bool(verl[f"{_TRACKING}.enable"])


def tracked_values(verl: Verl, job: Draft) -> None:
    """Convert the estimator, its decay and initial value, and note differences."""
    job.set("spec.algorithm.type", "spo", f"{_TRACKING}.enable")
    kind, decay = f"{_TRACKING}.rho.type", f"{_TRACKING}.rho.value"
    if verl[kind] == "constant":
        job.keep(kind)
        job.copy(decay)
    else:
        why = "what was known of a prompt fades by a constant at each visit"
        job.leave_out(why, kind)
        job.note(f"{why} here, by the KL since the last one there", f"{_TRACKING}.enable")
    drawn, values = f"{_TRACKING}.offline_N", f"{_TRACKING}.offline_values"
    if verl[drawn] == 0:
        job.keep(drawn)
        why = "with offline_N=0 all prompts are known alike at first, as here"
        job.leave_out(why, values, changes_numbers=False)
    else:
        job.leave_out(
            "a column of the rows has these scores here: write spec.data.scoresKey", values
        )
    if verl["algorithm.use_kl_in_reward"]:
        why = "advantages there are without that KL; without spec.algorithm.kl they are here"
        job.note(why, "algorithm.use_kl_in_reward")
    _prompts(verl, job)


def _prompts(verl: Verl, job: Draft) -> None:
    """Convert the prompts per step: SPO chooses among more, so an epoch has fewer steps."""
    fetched, kept = "data.gen_batch_size", "data.train_batch_size"
    if not verl.is_given(fetched) or verl[fetched] == verl[kept]:
        return
    job.set("spec.data.sampler.function", "uncertain", fetched)
    job.note("chosen by the same weights, of all rows and not of so many that come next", fetched)
    if not verl.is_given("trainer.total_training_steps"):
        why = (
            f"a step there reads {verl[fetched]} prompts and trains on {verl[kept]}, so a pass "
            "there has fewer steps than here; write spec.steps.total"
        )
        job.note(why, "trainer.total_epochs")
