"""Packed rows: a micro-batch as one sequence without padding, with shared prompts.

With shared prompts a group is packed as `prompt, response_1, ..., response_n`: each response
attends to the prompt and causally to itself, with positions after the prompt's. Otherwise rows are
packed as `prompt, response`. Further contexts of a row follow; each attends to itself only, with
positions from 0. Tokens of a context after the predictor of its last trained token are left out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

import torch
from torch import Tensor

from ppojob_trainer.data.media.images import LaterImage, packed, unpacked_later
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive packed tokens with causal attention, and full attention in `bidirectional`."""

    start: int  # index of the first token in the packed sequence
    length: int
    prefix_start: int = 0  # start of the prompt that the span attends to
    prefix_length: int = 0  # 0 without a prompt
    # [first, end) of bidirectional runs of packed tokens, such as images
    bidirectional: tuple[tuple[int, int], ...] = ()


def in_chunks(spans: Sequence[Span], size: int) -> Iterator[Span]:
    """Cut spans of text where a chunk of `size` tokens of their context ends.

    A token attends to its own chunk alone (Llama 4's chunked attention).
    """
    for span in spans:
        prefix, end = span.prefix_length, span.prefix_length + span.length
        for begin in range(prefix - prefix % size, end, size):
            first, before = max(begin, prefix), max(0, prefix - begin)
            length = min(begin + size, end) - first
            start, prefix_start = span.start + first - prefix, span.prefix_start + begin
            yield Span(start, length, prefix_start if before else 0, before)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Input of one packed forward pass, and the positions of its outputs."""

    input_ids: Tensor  # (packed,) int64
    position_ids: Tensor  # (packed,) int64, or (3, packed) with M-RoPE
    spans: tuple[Span, ...]  # cover the packed sequence, in order
    predictors: Tensor  # (trained,) int64, the packed token that predicts each trained token
    targets: Tensor  # (trained,) int64, the trained tokens, in row order
    places: Tensor  # (trained,) int64, their indices among all trained tokens
    # (packed,) int64 in host memory, index of each token among those of all prompts, then all
    # responses; -1 for padding
    sources: Tensor
    readings: tuple[tuple[Span, ...], ...]  # spans of each row's contexts; () if none is trained
    images: tuple[bytes, ...] = ()  # of prompts and responses, in packed order
    image_places: Tensor | None = None  # (n,) int64, the packed image tokens
    image_rows: Tensor | None = None  # (n,) int64, rows of the vision tower's features for these

    def tokens_of(self, number: int, runs: int) -> slice:
        """Return the packed tokens of one of `runs` equal sequence-parallel shards."""
        length = len(self.input_ids) // runs
        return slice(number * length, (number + 1) * length)

    def run(self, number: int, runs: int) -> "PackedRows":
        """Return one of `runs` equal shards of the packed tokens, and the tokens it predicts.

        Spans are those of all tokens; predictors count from the start of the shard.
        """
        if runs == 1:
            return self
        own = self.tokens_of(number, runs)
        first = own.start
        is_own = (self.predictors >= first) & (self.predictors < own.stop)
        shown, rows = self.image_places, self.image_rows
        if shown is not None and rows is not None:
            is_seen = (shown >= first) & (shown < own.stop)
            shown, rows = shown[is_seen] - first, rows[is_seen]
        return replace(
            self,
            input_ids=self.input_ids[own],
            position_ids=self.position_ids[..., own],
            predictors=self.predictors[is_own] - first,
            targets=self.targets[is_own],
            places=self.places[is_own],
            sources=self.sources[own],
            image_places=shown,
            image_rows=rows,
        )

    def to(self, device: torch.device) -> "PackedRows":
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            predictors=self.predictors.to(device),
            targets=self.targets.to(device),
            places=self.places.to(device),
            image_places=None if (seen := self.image_places) is None else seen.to(device),
            image_rows=None if (rows := self.image_rows) is None else rows.to(device),
        )


@dataclass(frozen=True, slots=True)
class _Text:
    """A prompt, or the part of a response that is packed."""

    ids: Tensor  # (tokens,) int64
    sources: Tensor  # (tokens,) int64, see `PackedRows`
    positions: Tensor  # (1, tokens) int64, or (3, tokens) for M-RoPE
    images: bytes  # encoded, as one value
    places: Tensor  # (n,) int64, its image tokens
    bidirectional: tuple[tuple[int, int], ...] = ()  # see `Span`, from the start of the text

    @classmethod
    def of(
        cls,
        ids: Tensor,
        sources: Tensor,
        form: MediaForm | None,
        images: bytes = b"",
        later: Sequence[int] = (),
    ) -> "_Text":
        """Make a text with positions from 0; `later` is as in `MediaForm.places`."""
        if form is None or not images:
            return cls(ids, sources, torch.arange(len(ids))[None], b"", ids[:0])
        listed = ids.tolist()
        found = form.places(listed, images, later)
        places = torch.tensor([one for own in found for one in own])
        positions = torch.tensor(form.positions(listed, images, later))
        bidirectional = tuple((own[0], own[-1] + 1) for own in found) if form.sees_ahead else ()
        return cls(ids, sources, positions, images, places, bidirectional)


@dataclass(frozen=True, slots=True)
class _Response:
    ids: Tensor  # (tokens,) int64
    sources: Tensor  # (tokens,) int64, see `PackedRows`
    trained: Tensor  # (n,) int64, indices of its trained tokens
    starts: Tensor  # (contexts - 1,) int64, where the later contexts begin
    shown: tuple[LaterImage, ...]  # images in it

    def contexts(self, form: MediaForm | None) -> list[tuple[_Text, Tensor]]:
        """Return the packed part of each context, and the indices of its trained tokens.

        The first continues the prompt. Later ones without trained tokens are left out.
        """
        found = []
        for begin, end in pairwise([0, *self.starts.tolist(), len(self.ids)]):
            places = self.trained[(self.trained >= begin) & (self.trained < end)] - begin
            if begin and not len(places):
                continue
            own = slice(begin, begin + (int(places[-1]) if len(places) else 0))
            seen = [one for one in self.shown if own.start <= one.start < own.stop]
            files, at = packed([one.file for one in seen]), [one.start - begin for one in seen]
            read = _Text.of(self.ids[own], self.sources[own], form, files, at)
            found.append((read, places))
        return found


class _Packer:
    def __init__(self) -> None:
        self.texts: list[tuple[int, _Text]] = []  # with where they start
        self.spans: list[Span] = []
        self.end = 0

    def add(self, *texts: _Text, prefix: Span | None = None) -> Span:
        """Append a span of texts that continues `prefix`, or starts a row."""
        begin, bidirectional = self.end, []
        for text in texts:
            bidirectional += [
                (self.end + first, self.end + end) for first, end in text.bidirectional
            ]
            self.texts.append((self.end, text))
            self.end += len(text.ids)
        before = (0, 0) if prefix is None else (prefix.start, prefix.length)
        span = Span(begin, self.end - begin, *before, tuple(bidirectional))
        if span.length:
            self.spans.append(span)
        return span

    def add_row(
        self, prompt: _Text, response: _Response, form: MediaForm | None, shared: Span | None
    ) -> tuple[tuple[Span, ...], Tensor]:
        """Append a response after its prompt, which is appended too unless `shared`.

        Returns the spans of the row, and the packed indices that predict its trained tokens.
        """
        (first_read, places), *others = response.contexts(form)
        read = replace(first_read, positions=first_read.positions + prompt.positions.max() + 1)
        spans: tuple[Span, ...]
        if shared is not None:
            own = self.add(read, prefix=shared)
            spans, first = (shared, own), own.start
            last = shared.start + shared.length - 1
        else:
            whole = self.add(prompt, read)
            last = whole.start + len(prompt.ids) - 1
            spans, first = (whole,), last + 1
        found = [torch.where(places == 0, last, first + places - 1)]
        for text, places_of_context in others:
            whole = self.add(text)
            spans = (*spans, whole)
            found.append(whole.start + places_of_context - 1)
        return spans, torch.cat(found)

    def packed(
        self, predictors: Tensor, targets: Tensor, readings: Sequence[tuple[Span, ...]]
    ) -> PackedRows:
        """Return the packed rows. Positions have three rows with M-RoPE."""
        seeing = [(start, text) for start, text in self.texts if text.images]
        shown = torch.cat([text.places + start for start, text in seeing]) if seeing else None
        texts = [text for _, text in self.texts]
        rows = max(len(text.positions) for text in texts)
        positions = torch.cat([text.positions.expand(rows, -1) for text in texts], dim=1)
        return PackedRows(
            input_ids=torch.cat([text.ids for text in texts]),
            position_ids=positions.squeeze(0),
            spans=tuple(self.spans),
            predictors=predictors,
            targets=targets,
            places=torch.arange(len(targets)),
            sources=torch.cat([text.sources for text in texts]),
            readings=tuple(readings),
            images=tuple(text.images for _, text in seeing),
            image_places=shown,
            image_rows=None if shown is None else torch.arange(len(shown)),
        )


def pack_rows(
    experience: Experience,
    *,
    share_prompts: bool = True,
    multiple: int = 1,
    form: MediaForm | None = None,
) -> PackedRows:
    """Pack all rows of an experience, at least one; each prompt once per group, or once per row.

    The sequence is padded to a multiple of `multiple`. `form` is the model's image format; None for
    text models.
    """
    packer = _Packer()
    prompts, responses = _prompts(experience, form), _responses(experience)
    shared: dict[int, Span] = {}
    predictors: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * experience.num_rows
    readings: list[tuple[Span, ...]] = [()] * experience.num_rows
    groups = experience.row_groups.tolist()
    first_rows = {group: row for row, group in reversed(list(enumerate(groups)))}
    for row in sorted(range(len(groups)), key=lambda row: (first_rows[groups[row]], row)):
        group, response = groups[row], responses[row]
        if share_prompts and group not in shared:
            shared[group] = packer.add(prompts[group])
        read, predictors[row] = packer.add_row(prompts[group], response, form, shared.get(group))
        readings[row] = read if len(response.trained) else ()
    filler = torch.zeros(-packer.end % multiple, dtype=torch.int64)
    packer.add(_Text.of(filler, filler - 1, form))
    targets = experience.response_tokens[experience.mask]
    return packer.packed(torch.cat(predictors), targets, readings)


def _prompts(experience: Experience, form: MediaForm | None) -> list[_Text]:
    numbers = _numbered(experience.prompt_lengths.tolist())
    shown = experience.images or [b""] * experience.num_groups
    return [
        _Text.of(ids, sources, form, images)
        for ids, sources, images in zip(experience.prompts, numbers, shown, strict=True)
    ]


def _responses(experience: Experience) -> list[_Response]:
    lengths = experience.lengths.tolist()
    tokens_of_prompts = sum(prompt.numel() for prompt in experience.prompts)
    trained, starts = (
        [column.nonzero()[:, 0] for column in torch.split(whole, lengths)]
        for whole in (experience.mask, experience.context_starts)
    )
    texts = torch.split(experience.response_tokens, lengths)
    numbers = _numbered(lengths, first=tokens_of_prompts)
    held = experience.later_images or [b""] * len(lengths)
    shown = [tuple(unpacked_later(images)) for images in held]
    return list(starmap(_Response, zip(texts, numbers, trained, starts, shown, strict=True)))


def token_keys(experience: Experience, sources: Tensor, update: int) -> Tensor:
    """Return (n,) int32 keys of packed tokens by their `sources`: random numbers of the update.

    They depend on a token's row and its index there, not on what else is packed. A row is known by
    its tokens and its prompt's, and a prompt by its own: equal rows have equal keys.
    """
    prompts = experience.prompts
    groups, lengths = experience.row_groups.tolist(), experience.lengths.tolist()
    responses = torch.split(experience.response_tokens, lengths)
    texts: list[tuple[Tensor, ...]] = [(prompt,) for prompt in prompts]
    texts += [(prompts[group], own) for group, own in zip(groups, responses, strict=True)]
    keys = []
    for text in texts:
        name = hashlib.blake2b(f"{update}/{[len(part) for part in text]}/".encode(), digest_size=8)
        for part in text:
            name.update(part.numpy().tobytes())
        stream = torch.Generator().manual_seed(int.from_bytes(name.digest()) >> 1)
        size = (len(text[-1]),)
        keys.append(torch.randint(-(2**31), 2**31, size, dtype=torch.int32, generator=stream))
    return torch.cat([*keys, torch.zeros(1, dtype=torch.int32)])[sources]  # -1 is padding


def _numbered(lengths: list[int], first: int = 0) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(first, first + sum(lengths)), lengths)
