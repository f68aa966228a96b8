"""Checks that every model reading the policy's tokens also sees its pictures. Loads no torch."""

from collections.abc import Callable
from pathlib import Path

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.picture_form import PictureForm
from ppojob_trainer.data.media.picture_forms import read_form


def why_blind(spec: PPOJobSpec) -> Callable[[str], str]:
    """Return a function that says why rows of a data source cannot have pictures; empty: they can.

    Every other reader of the policy's tokens must take pictures as the policy does.
    """
    form = read_form(Path(spec.model.path))
    forms = [read_form(Path(path)) for path in spec.reference_paths]
    blind = next((one for one in spec.critic_paths if read_form(Path(one)) != form), None)

    def why(data_source: str) -> str:
        if spec.data.teacher_prompt_key is not None or spec.algorithm.reprompt is not None:
            return "not in this version where the teacher has prompts of its own"
        if is_drawn_causally(spec, form):
            why = "on GPUs vLLM was not tried with tokens of pictures that see those behind them"
            return f"{why}, as this model's do: spec.rollout.engine: huggingface goes"
        if blind is not None:
            return f"{blind} of spec.critic takes none, or not as the policy"
        number = 0 if spec.reference is None else spec.reference.number_for(data_source)
        if number is None or forms[number] == form:
            return ""
        return f"{spec.reference_paths[number]} of spec.reference takes none, or not as the policy"

    return why


def seen_by_all(spec: PPOJobSpec) -> bool:
    """Whether the policy sees pictures, and all who read its tokens take them as it does."""
    form = read_form(Path(spec.model.path))
    readers = [*spec.critic_paths, *spec.reference_paths]
    if not isinstance(form, PictureForm) or is_drawn_causally(spec, form):
        return False
    return all(read_form(Path(path)) == form for path in readers)


def is_drawn_causally(spec: PPOJobSpec, form: MediaForm | None) -> bool:
    """Whether vLLM draws rows on GPUs, where tokens of pictures would not see ahead, as they do."""
    if form is None or not form.sees_ahead or spec.algorithm.given or spec.rollout.replay:
        return False
    role = spec.roles.rollout or spec.roles.actor_rollout
    return spec.rollout.engine == "vllm" and role.gpus_per_replica > 0
