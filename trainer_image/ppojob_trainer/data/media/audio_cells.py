"""Reads the audios of a cell, resampled for the model. Loads no torch.

Source: librosa 0.11, `load`, by which transformers' processors read files: channels are averaged,
then resampled by soxr's "HQ". Readers raise `BadImage` or `BadCell` for what cannot be read.
"""

import io
from collections.abc import Mapping
from typing import Final

import numpy as np
import soundfile
import soxr

from ppojob_api.problem import counted, shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_trainer.data.formats import Row
from ppojob_trainer.data.media.audio_form import AudioForm
from ppojob_trainer.data.media.image_cells import BadImage, bytes_at, items_of
from ppojob_trainer.data.media.images import AUDIO_MARK, Samples, packed_audio
from ppojob_trainer.data.problems import BadCell

_SOURCES: Final = ("bytes", "audio", "audio_url", "array", "path")
"""Names of the audio in a struct: those of `datasets`, and of message parts."""
_RATES: Final = (1_000, 768_000)
_ALLOWED: Final = "a path, bytes, or a struct of array and sampling_rate"


def read_audios(cell: object, form: AudioForm) -> list[bytes]:
    """Read the audios of a cell: one, or a list.

    Each is a path, the bytes of a file, or a struct with one of these, or with array and
    sampling_rate, as `datasets` writes them.
    """
    return [packed_audio(_samples(one, form)) for one in items_of(cell)]


def _samples(cell: object, form: AudioForm) -> Samples:
    content: object = cell
    if isinstance(cell, Mapping):
        content = next((cell[key] for key in _SOURCES if cell.get(key) is not None), None)
        if isinstance(content, Mapping):
            return _samples(content, form)
    if isinstance(content, list):
        rate = cell.get("sampling_rate") if isinstance(cell, Mapping) else None
        return _resampled(*_of_array(content, rate), form)
    named = shown(content) if isinstance(content, str) else "bytes that are not an audio"
    if isinstance(content, str):
        content = bytes_at(content, "audio")
    if not isinstance(content, bytes):
        raise BadImage(type(content).__name__, "it is not an audio", _ALLOWED)
    return _resampled(*_decoded(content, named, form), form)


def _of_array(content: list[object], rate: object) -> tuple[Samples, int]:
    """Return (samples,) of a row's array, and their sampling rate."""
    if type(rate) is not int or not _RATES[0] <= rate <= _RATES[1]:
        why, allowed = "the sampling_rate of the array is required", "an integer from {} to {}"
        raise BadImage(shown(rate), why, allowed.format(*_RATES))
    try:
        samples = np.asarray(content, np.float32)
    except (ValueError, TypeError):
        samples = np.zeros((0, 0, 0), np.float32)
    if samples.ndim == 2:  # (channels, samples), as `datasets` has it
        samples = samples.mean(axis=0)
    if samples.ndim != 1:
        raise BadImage("an array", "it is not an audio", "numbers, or a list of them per channel")
    return samples, rate


def _decoded(content: bytes, named: str, form: AudioForm) -> tuple[Samples, int]:
    """Return (samples,) of a file, and their sampling rate."""
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, count = file.samplerate, file.frames
            if count > form.seconds * rate:  # refused without reading it
                raise _too_long(count / rate, form)
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")
        raise BadImage(named, why, "a complete WAV, FLAC, MP3 or similar file") from None
    if len(samples) < count:
        why = f"it is truncated: {len(samples)} of {count} samples can be read"
        raise BadImage(named, why, "a complete audio")
    return samples.mean(axis=1), rate


def _resampled(samples: Samples, rate: int, form: AudioForm) -> Samples:
    """Resample an audio to the rate of the model; refuse one that is too long or too short."""
    if len(samples) > form.seconds * rate:
        raise _too_long(len(samples) / rate, form)
    if not np.isfinite(samples).all():
        raise BadImage("a sample that is not finite", "it is not an audio", "finite numbers")
    found: Samples = samples
    if rate != form.rate:
        found = soxr.resample(samples, rate, form.rate, quality="HQ")
        # librosa's length: an incomplete last sample is silence.
        found = np.pad(found, (0, -(-len(samples) * form.rate // rate) - len(found)))
    if len(found) < form.least:
        got = f"an audio of {len(samples) / rate:.3g} seconds"
        allowed = f"at least {form.least / form.rate:.3g}"
        raise BadImage(got, "too short for one token", allowed)
    return found[: form.seconds * form.rate]


def _too_long(seconds: float, form: AudioForm) -> BadImage:
    why, allowed = f"the model takes at most {form.seconds} seconds", "a shorter audio"
    return BadImage(f"an audio of {seconds:.6g} seconds", why, allowed)


def without_parts(cells: Row, spec: DataSpec) -> Row:
    """Replace message parts by text with marks, and move their audios to a column."""
    key, column = spec.prompt_key, spec.audio_key
    messages = cells.get(key)
    if not isinstance(messages, list):
        return cells
    audios: list[object] = []
    joined = [_joined(one, f"{key}[{n}]", audios) for n, one in enumerate(messages)]
    if audios and cells.get(column):
        why, allowed = f"the row has others in {column}", f"audios in {key} or in {column}"
        got = f"{counted(len(audios), 'audio')} in parts of messages"
        raise BadCell(key, got, why, allowed)
    return {**cells, key: joined, **({column: audios} if audios else {})}


def _joined(message: object, place: str, audios: list[object]) -> object:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    texts = []
    for number, cell in enumerate(message["content"]):
        # Parquet gives every struct the fields of all: a null one was never written.
        part = cell if isinstance(cell, Mapping) else {}
        part = {name: one for name, one in part.items() if one is not None}
        if part.get("type") == "audio":
            texts.append(AUDIO_MARK)
            if part.keys() & set(_SOURCES):
                audios.append(part)
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            where, why = f"{place}.content[{number}]", "parts of messages are text and audio"
            allowed = '{"type": "text", "text": ...} or {"type": "audio", "audio": ...}'
            raise BadCell(where, shown(cell), why, allowed)
    return {**message, "content": "".join(texts)}
