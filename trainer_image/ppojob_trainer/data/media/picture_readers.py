"""Checks that every model that reads the policy's tokens takes its pictures. Loads no torch."""

from collections.abc import Callable
from pathlib import Path

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.picture_form import PictureForm
from ppojob_trainer.data.media.picture_forms import read_form


def why_no_pictures(spec: PPOJobSpec) -> Callable[[str], str]:
    """Return a function: data source -> why its rows cannot have pictures; empty if they can.

    Every other model that reads the policy's tokens must take pictures as the policy does.
    """
    form = read_form(Path(spec.model.path))
    forms = [read_form(Path(path)) for path in spec.reference_paths]
    other = next((one for one in spec.critic_paths if read_form(Path(one)) != form), None)

    def why(data_source: str) -> str:
        if spec.data.teacher_prompt_key is not None or spec.algorithm.reprompt is not None:
            return "not in this version if the teacher has its own prompts"
        if is_drawn_causally(spec, form):
            why = "bidirectional attention in pictures, as in this model, is not tested with vLLM"
            return f"{why} on GPUs: use spec.rollout.engine: huggingface"
        if other is not None:
            return f"{other} of spec.critic takes none, or not as the policy"
        number = 0 if spec.reference is None else spec.reference.number_for(data_source)
        if number is None or forms[number] == form:
            return ""
        return f"{spec.reference_paths[number]} of spec.reference takes none, or not as the policy"

    return why


def all_take_pictures(spec: PPOJobSpec) -> bool:
    """Whether the policy and all other models that read its tokens take pictures alike."""
    form = read_form(Path(spec.model.path))
    readers = [*spec.critic_paths, *spec.reference_paths]
    if not isinstance(form, PictureForm) or is_drawn_causally(spec, form):
        return False
    return all(read_form(Path(path)) == form for path in readers)


def is_drawn_causally(spec: PPOJobSpec, form: MediaForm | None) -> bool:
    """Whether vLLM on GPUs generates, with causal attention where the model's is bidirectional."""
    if form is None or not form.sees_ahead or spec.algorithm.given or spec.rollout.replay:
        return False
    role = spec.roles.rollout or spec.roles.actor_rollout
    return spec.rollout.engine == "vllm" and role.gpus_per_replica > 0
