"""Reads the sounds of rows from cells, resampled for the model. Loads no torch.

Source: librosa 0.11, `load`, by which transformers' processors read files: channels are averaged,
then the pace is changed by soxr's "HQ".
"""

import io
from collections.abc import Mapping
from typing import Final

import numpy as np
import soundfile
import soxr

from ppojob_api.problem import counted, shown
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.media.picture_cells import BadPicture, bytes_at
from ppojob_trainer.data.media.sound_form import SoundForm
from ppojob_trainer.data.media.sounds import MARK, Samples, packed_sound
from ppojob_trainer.data.problems import BadCell

_SOURCES: Final = ("bytes", "audio", "audio_url", "array", "path")
"""Names that a struct has for its sound: those of `datasets`, and of messages with parts."""
_RATES: Final = (1_000, 768_000)
_UNKNOWN: Final = 2**63 - 1
"""Samples of a FLAC that does not say how many it has, by libsndfile."""
_ALLOWED: Final = "a path, bytes, or a struct of array and sampling_rate"


def read_sounds(cell: object, form: SoundForm) -> list[bytes]:
    """The sounds of a cell: a list of them, or one.

    Each is a path, the bytes of a file, or a struct with one of these, or with array and
    sampling_rate, as `datasets` writes them.

    Raises:
        BadPicture: something is none, or cannot be read, or is longer than the model hears.
    """
    cells = cell if isinstance(cell, list) else [] if cell is None else [cell]
    return [packed_sound(_heard(one, form)) for one in cells]


def _heard(cell: object, form: SoundForm) -> Samples:
    content: object = cell
    if isinstance(cell, Mapping):
        content = next((cell[key] for key in _SOURCES if cell.get(key) is not None), None)
        if isinstance(content, Mapping):
            return _heard(content, form)
    if isinstance(content, list):
        rate = cell.get("sampling_rate") if isinstance(cell, Mapping) else None
        return _fitted(*_of_array(content, rate), form)
    named = shown(content) if isinstance(content, str) else "bytes that are no sound"
    if isinstance(content, str):
        content = bytes_at(content, "sound")
    if not isinstance(content, bytes):
        raise BadPicture(type(content).__name__, "it is no sound", _ALLOWED)
    return _fitted(*_decoded(content, named, form), form)


def _of_array(content: list[object], rate: object) -> tuple[Samples, int]:
    """Samples that a row holds, and how many of them a second has."""
    if type(rate) is not int or not _RATES[0] <= rate <= _RATES[1]:
        why, allowed = "sampling_rate says how fast the array is", "an integer from {} to {}"
        raise BadPicture(shown(rate), why, allowed.format(*_RATES))
    try:
        samples = np.asarray(content, np.float32)
    except (ValueError, TypeError):
        samples = np.zeros((0, 0, 0), np.float32)
    if samples.ndim == 2:  # (channels, samples), as `datasets` has it
        samples = samples.mean(axis=0)
    if samples.ndim != 1:
        raise BadPicture("an array", "it is no sound", "numbers, or a list of them per channel")
    return samples, rate


def _decoded(content: bytes, named: str, form: SoundForm) -> tuple[Samples, int]:
    """Samples of a file, and how many of them a second has."""
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, count = file.samplerate, file.frames
            if count == _UNKNOWN:  # which soundfile does not read to its end
                why = "it does not say how long it is, as one out of a pipe"
                raise BadPicture(named, why, "a file that says it")
            if not count:  # as libsndfile has it of an OGG whose last page is not there
                raise BadPicture(named, "it breaks off, or is empty", "a whole sound")
            if count > form.seconds * rate:  # of which the rest is not read
                raise _too_long(count / rate, form)
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")
        raise BadPicture(named, why, "a whole WAV, FLAC, MP3 or the like") from None
    if len(samples) < count:
        why = f"it breaks off: {len(samples)} of {count} samples can be read"
        raise BadPicture(named, why, "a whole sound")
    return samples.mean(axis=1), rate


def _fitted(samples: Samples, rate: int, form: SoundForm) -> Samples:
    """A sound at the pace that the model hears, if it is neither too long nor too short."""
    if len(samples) > form.seconds * rate:
        raise _too_long(len(samples) / rate, form)
    if not np.isfinite(samples).all():
        raise BadPicture("a sample that is no number", "it is no sound", "finite numbers")
    heard: Samples = samples
    if rate != form.rate:
        heard = soxr.resample(samples, rate, form.rate, quality="HQ")
        # librosa's length: of a last sample that soxr has only a part of, there is silence.
        heard = np.pad(heard, (0, -(-len(samples) * form.rate // rate) - len(heard)))
    if len(heard) < form.least:
        got = f"a sound of {len(samples) / rate:.3g} seconds"
        raise BadPicture(got, "no token stands for it", f"{form.least / form.rate:.3g} or more")
    return heard[: form.seconds * form.rate]


def _too_long(seconds: float, form: SoundForm) -> BadPicture:
    why = f"the model hears {form.seconds} of them, and no more"
    return BadPicture(f"a sound of {seconds:.6g} seconds", why, f"one of {form.seconds} at most")


def without_parts(cells: Row, spec: DataSpec) -> Row:
    """A row whose messages have texts with marks in place of parts of text and sound.

    What the parts hold goes into the column of sounds.

    Raises:
        BadCell: a part is something else; or sounds are in both places.
    """
    key, column = spec.prompt_key, spec.audio_key
    messages = cells.get(key)
    if not isinstance(messages, list):
        return cells
    sounds: list[object] = []
    joined = [_joined(one, f"{key}[{n}]", sounds) for n, one in enumerate(messages)]
    if sounds and cells.get(column):
        why, allowed = f"the row has others in {column}", f"sounds in {key} or in {column}"
        got = f"{counted(len(sounds), 'sound')} in parts of messages"
        raise BadCell(key, got, why, allowed)
    return {**cells, key: joined, **({column: sounds} if sounds else {})}


def _joined(message: object, place: str, sounds: list[object]) -> object:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    texts = []
    for number, cell in enumerate(message["content"]):
        # Parquet gives every struct the fields of all: a null one was never written.
        part = cell if isinstance(cell, Mapping) else {}
        part = {name: one for name, one in part.items() if one is not None}
        if part.get("type") == "audio":
            texts.append(MARK)
            if part.keys() & set(_SOURCES):
                sounds.append(part)
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            where, why = f"{place}.content[{number}]", "parts of messages are text and sound"
            allowed = '{"type": "text", "text": ...} or {"type": "audio", "audio": ...}'
            raise BadCell(where, shown(cell), why, allowed)
    return {**message, "content": "".join(texts)}
