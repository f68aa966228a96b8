"""Media columns: reads a row's pictures, videos and sounds in the order of their marks."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ppojob_api.problem import counted
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.media import pictures, sounds, videos
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.picture_cells import BadPicture, read_pictures
from ppojob_trainer.data.media.picture_form import PictureForm, RequestedSize, sound_form_of
from ppojob_trainer.data.media.sound_cells import read_sounds
from ppojob_trainer.data.media.video_cells import read_videos
from ppojob_trainer.data.problems import BadCell
from ppojob_trainer.data.prompt_store import Prompt


class Medium(NamedTuple):
    """A kind of media in rows."""

    column: str
    mark: str
    noun: str


PICTURES: Final = Medium(pictures.COLUMN, pictures.MARK, "picture")
VIDEOS: Final = Medium(videos.COLUMN, videos.MARK, "video")


def media_of(form: MediaForm | None, spec: DataSpec) -> tuple[Medium, ...]:
    """Return the kinds of media that a model takes."""
    visual = (PICTURES, VIDEOS) if isinstance(form, PictureForm) else ()
    audio = (Medium(spec.audio_key, sounds.MARK, "sound"),) if sound_form_of(form) else ()
    return visual + audio


def medium_of(file: bytes, media: Sequence[Medium]) -> Medium:
    """Return the kind of a file, among those of `media_of`."""
    if sounds.sound_of(file) is not None:
        return media[-1]
    return VIDEOS if videos.clip_of(file) else PICTURES


def read_media(
    cells: Row,
    prompt: Prompt,
    later: pictures.Messages,
    spec: DataSpec,
    form: MediaForm,
    given: GivenType | None,
) -> tuple[list[bytes], list[bytes]]:
    """Read the media files of a prompt, and those of the messages after it, in order.

    Args:
        cells: of the row.
        prompt: with a mark for each medium.
        later: messages after the prompt.
        spec: names the columns.
        form: the model's media format.
        given: type of a job whose rows have their answers.
    """
    marked = pictures.marks(later)
    for one in media_of(form, spec):
        may_be_later = one is PICTURES and given == "sft"
        if cells.get(one.column) and one.mark in marked and not may_be_later:
            got, why = f"{one.mark} after an answer", f"not in this version with {given}"
            allowed = f"{one.noun}s before the first assistant message"
            raise BadCell(spec.prompt_key, got, why, allowed)
    found = _read(cells, spec, form)
    marks = [] if isinstance(prompt, str) else [*pictures.marks(prompt), *marked]
    for one, files in found.items():
        why = f"the row has {counted(len(files), one.noun)}"
        if isinstance(prompt, str):
            why += ", which must be in messages"
            raise BadCell(spec.prompt_key, "text", why, "a list of messages")
        if (count := marks.count(one.mark)) != len(files):
            allowed = f"a mark for each {one.noun}"
            raise BadCell(spec.prompt_key, f"{counted(count, 'mark')} {one.mark}", why, allowed)
    left = {one.mark: iter(files) for one, files in found.items()}
    ordered = [next(left[mark]) if mark in left else () for mark in marks]
    first = len(marks) - len(marked)
    of_prompt, after_prompt = (
        [file for files in part for file in files] for part in (ordered[:first], ordered[first:])
    )
    return of_prompt, after_prompt


def _read(cells: Row, spec: DataSpec, form: MediaForm) -> dict[Medium, Sequence[Sequence[bytes]]]:
    """Read the files of each picture, video and sound of a row, by kind."""
    found = {}
    for one in media_of(form, spec):
        try:
            found[one] = _files(cells.get(one.column), one, spec, form)
        except BadPicture as bad:
            raise BadCell(one.column, *bad.args) from None
    return {one: files for one, files in found.items() if files}


def _files(
    cell: object, medium: Medium, spec: DataSpec, form: MediaForm
) -> Sequence[Sequence[bytes]]:
    sound = sound_form_of(form)
    if sound is not None and medium not in (PICTURES, VIDEOS):
        return [[file] for file in read_sounds(cell, sound)]
    assert isinstance(form, PictureForm), "a form of pictures or of sounds"
    requested = RequestedSize(spec.min_picture_pixels, spec.max_picture_pixels)
    if medium is VIDEOS:
        return read_videos(cell, form, requested)
    return [[file] for file in read_pictures(cell, form, requested)]
