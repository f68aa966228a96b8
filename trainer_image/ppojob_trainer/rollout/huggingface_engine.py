"""Hugging Face engine: rollouts with transformers, mainly for models that vLLM does not support.

Requests that are admitted together form a batch: distinct prompts are prefilled once, with left
padding, and rows advance by one token per step. Later requests form a batch of their own, so caches
are never merged. The same requests in the same order give the same bits. Each row has its own
random stream.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model
from transformers.models.gemma4.modeling_gemma4 import (
    create_masks_for_vision_model as create_masks_of_windows,
)

from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.routes import Routes, as_bytes
from ppojob_trainer.models.transformers_modules import per_layer_inputs
from ppojob_trainer.models.vision_tower import tower_of
from ppojob_trainer.rollout.protocol import (
    Finished,
    FinishReason,
    Request,
    RolloutEngine,
    RolloutError,
    check_idle,
    check_request,
    nan_error,
)
from ppojob_trainer.rollout.sampling import draw, masked, penalised, processed_logprobs
from ppojob_trainer.rollout.structured_output import GrammarMatcher

# Compiles 600 patterns of names before ranks are forked.
get_checkpoint_conversion_mapping("")


@dataclass(slots=True)
class _Row:
    number: int  # of submission
    request: Request
    uniforms: Tensor  # (max_tokens,) float64
    matcher: GrammarMatcher | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    # (t, layers, k) of the tokens that were read, chunk by chunk
    experts: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """Rows that share a key-value cache: B rows, K cached positions."""

    rows: list[_Row]
    cache: Cache
    attention_mask: Tensor  # (B, K) int64, 0 on the left padding
    logits: Tensor  # (B, vocab), of the token that comes next
    ahead: Tensor  # (B, 1) int64, how far positions exceed token indices; 0 for text


class HuggingFaceEngine(RolloutEngine):
    """A `RolloutEngine` over a causal language model of transformers."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_model_tokens: int,
        max_sequences: int,
        records_experts: bool = False,
    ) -> None:
        """Take over a model, on its device and in the dtype to generate in.

        Prompt and response have at most `max_model_tokens` together; at most `max_sequences` rows
        run at once. With `records_experts` a mixture reports the experts of its tokens.
        """
        self._tells_experts = records_experts
        self._model = model.eval().requires_grad_(False)
        if getattr(model.config, "attn_logit_softcapping", None) is not None:
            model.set_attn_implementation("eager")  # the fused kernel has no soft cap
        self._home = model.device
        self._max_model_tokens = max_model_tokens
        self._max_sequences = max_sequences
        self._submitted = 0
        self._waiting: dict[str, _Row] = {}
        self._running: dict[str, _Row] = {}
        self._aborted: list[_Row] = []
        self._batches: list[_Batch] = []
        self._unusable: Literal["asleep", "closed"] | None = None
        self._has_weights = False  # whether weights were loaded

    def submit(self, request: Request) -> None:
        if self._unusable is not None:
            raise RolloutError(f"submit {request.request_id!r}: the engine is {self._unusable}")
        if request.request_id in self._waiting or request.request_id in self._running:
            raise ValueError(f"request {request.request_id!r}: the id is already in use")
        vocab_size = self._model.get_input_embeddings().weight.shape[0]
        check_request(request, max_model_tokens=self._max_model_tokens, vocab_size=vocab_size)
        stream = torch.Generator().manual_seed(request.seed)
        uniforms = torch.rand(request.sampling.max_tokens, generator=stream, dtype=torch.float64)
        grammar = request.sampling.grammar
        matcher = None if grammar is None else grammar.matcher()
        self._waiting[request.request_id] = _Row(self._submitted, request, uniforms, matcher)
        self._submitted += 1

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        ended = self._aborted
        self._aborted = []
        self._remove_ended()
        for batch in self._batches:
            self._decode(batch)
        admitted = list(self._waiting.values())[: self._max_sequences - len(self._running)]
        if admitted:
            self._batches.append(self._prefill(admitted))
        for batch in self._batches:
            ended = ended + self._draw(batch)
        self._remove_ended()
        ended.sort(key=lambda row: row.number)
        finished = []
        for row in ended:
            assert row.finish_reason is not None
            finished.append(
                Finished(
                    row.request.request_id,
                    tuple(row.tokens),
                    tuple(row.logprobs),
                    row.finish_reason,
                    self.policy_version,
                    as_bytes(row.experts, self._model.config),
                )
            )
        return finished

    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._aborted)

    def abort(self, request_id: str) -> None:
        row = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
        if row is not None:
            row.finish_reason = "abort"
            self._aborted.append(row)

    @torch.no_grad()
    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        check_idle(self, "load_weights")
        self._model.to(self._home)
        own = self._model.state_dict(keep_vars=True)
        loaded: set[int] = set()
        tower = tower_of(self._model)
        for name, tensor in tensors if tower is None else tower.load_weights(tensors):
            if name not in own:
                raise RolloutError(f"load_weights: got {name!r}: the model has no such tensor")
            if own[name].shape != tensor.shape:
                raise RolloutError(
                    f"load_weights: {name}: got shape {tuple(tensor.shape)}; the model's is "
                    f"{tuple(own[name].shape)}"
                )
            own[name].copy_(tensor)
            loaded.add(id(own[name]))
        adapters = {name: own_tensor for name, own_tensor in own.items() if is_adapter(name)}
        if self._has_weights and loaded and loaded <= set(map(id, adapters.values())):
            own = adapters
        missing = [name for name, own_tensor in own.items() if id(own_tensor) not in loaded]
        if missing:
            raise RolloutError(f"load_weights: {len(missing)} tensors missing, first {missing[0]}")
        self._has_weights = True
        self.policy_version = version
        self._unusable = None

    def reset_cache(self) -> None:
        """See `RolloutEngine`; prefixes live no longer than their batch here."""
        check_idle(self, "reset_cache")

    def sleep(self) -> None:
        """Move the weights to the host; without an accelerator there is nothing to free."""
        check_idle(self, "sleep")
        self._model.to("cpu")
        self._unusable = "asleep"

    def close(self) -> None:
        self._waiting.clear()
        self._running.clear()
        self._aborted.clear()
        self._batches.clear()
        self._unusable = "closed"

    def _prefill(self, rows: list[_Row]) -> _Batch:
        """Prefill the distinct prompts of `rows`, left-padded, and copy caches to the rows."""
        for row in rows:
            self._running[row.request.request_id] = self._waiting.pop(row.request.request_id)
        keys = [(row.request.prompt, row.request.images, row.request.later) for row in rows]
        place = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        longest = max(len(prompt) for prompt, *_ in place)
        input_ids = torch.zeros(len(place), longest, dtype=torch.int64)
        attention_mask = torch.zeros_like(input_ids)
        for (prompt, *_), n in place.items():
            input_ids[n, longest - len(prompt) :] = torch.tensor(prompt)
            attention_mask[n, longest - len(prompt) :] = 1
        attention_mask = attention_mask.to(self._home)
        positions = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
        given: dict[str, Any] = {"input_ids": input_ids.to(self._home), "position_ids": positions}
        given["attention_mask"] = attention_mask
        ahead = torch.zeros(len(place), 1)
        if any(images for _, images, _ in place):
            ahead = self._add_images(given, list(place))
        output, experts = self._pass(**given, use_cache=True, logits_to_keep=1)
        for row, key in zip(rows, keys, strict=True) if experts else ():
            row.experts.append(experts[place[key]][longest - len(key[0]) :])
        spread = torch.tensor([place[key] for key in keys], device=self._home)
        output.past_key_values.reorder_cache(spread)
        return _Batch(
            rows,
            output.past_key_values,
            attention_mask[spread],
            output.logits[spread, -1],
            ahead.to(self._home, torch.int64)[spread],
        )

    def _add_images(
        self,
        given: dict[str, Any],
        prompts: list[tuple[tuple[int, ...], bytes, tuple[int, ...]]],
    ) -> Tensor:
        """Replace token ids by embeddings with images; returns `_Batch.ahead`."""
        input_ids, positions = given.pop("input_ids"), given["position_ids"]
        tower = tower_of(self._model)
        assert tower is not None, "the model takes no images"
        rows = [torch.tensor(tower.form.positions(*prompt)) for prompt in prompts]
        positions, ahead = positions.cpu().expand(len(rows[0]), -1, -1).clone(), []
        seen = torch.full(input_ids.shape, -1)  # index of the image at a token; -1 for none
        for n, (own, prompt) in enumerate(zip(rows, prompts, strict=True)):
            positions[:, n, -own.shape[1] :] = own
            ahead.append(int(own.max()) + 1 - own.shape[1])
            for number, one in enumerate(tower.form.places(*prompt)):
                seen[n, len(seen[n]) - own.shape[1] + torch.tensor(one)] = number
        embeddings = self._model.get_input_embeddings()(input_ids)
        places = (seen.flatten() >= 0).nonzero()[:, 0].to(self._home)
        given |= tower.embed_images(embeddings, places, [held for _, held, _ in prompts])
        given |= per_layer_inputs(self._model, input_ids, places)
        given["position_ids"] = positions.squeeze(0).to(self._home)
        if tower.form.sees_ahead:
            of_windows = tower.form.ahead_in_windows
            masks = create_masks_of_windows if of_windows else create_masks_for_vision_model
            given["attention_mask"] = masks(
                config=self._model.config,
                inputs_embeds=given["inputs_embeds"],
                attention_mask=given["attention_mask"],
                past_key_values=None,
                position_ids=given["position_ids"],
                block_sequence_ids=seen.to(self._home),
            )
        return torch.tensor(ahead)[:, None]

    def _decode(self, batch: _Batch) -> None:
        last = torch.tensor([[row.tokens[-1]] for row in batch.rows], device=self._home)
        seen = batch.attention_mask.new_ones(len(batch.rows), 1)
        batch.attention_mask = torch.cat([batch.attention_mask, seen], dim=1)
        output, experts = self._pass(
            input_ids=last,
            attention_mask=batch.attention_mask,
            position_ids=batch.attention_mask.sum(dim=-1, keepdim=True) - 1 + batch.ahead,
            past_key_values=batch.cache,
            use_cache=True,
        )
        batch.logits = output.logits[:, -1]
        for row, own in zip(batch.rows, experts, strict=False):
            row.experts.append(own)

    def _pass(self, position_ids: Tensor, **options: Any) -> tuple[Any, Sequence[Tensor]]:
        """Return the model's output, and the experts of each row, if they are recorded."""
        options["position_ids"] = position_ids
        if not self._tells_experts:
            return self._model(**options), ()
        routes = Routes()
        output = self._model(routes=routes, **options)
        chosen = routes.chosen(self._model.config.num_hidden_layers).cpu()
        return output, torch.split(chosen, position_ids.shape[-1])

    def _draw(self, batch: _Batch) -> list[_Row]:
        """Sample each row's next token; return the rows that ended."""
        sampling = [row.request.sampling for row in batch.rows]
        logits = batch.logits
        if any(row.matcher is not None for row in batch.rows):
            logits = masked(logits, [row.matcher for row in batch.rows])
        if any(params.repetition_penalty != 1.0 for params in sampling):
            texts = [(*row.request.prompt, *row.tokens) for row in batch.rows]
            logits = penalised(logits, sampling, texts)
        logprobs = processed_logprobs(logits, sampling)
        for row, is_broken in zip(batch.rows, logprobs.isnan().any(dim=-1).tolist(), strict=True):
            if is_broken:
                raise nan_error(row.request.request_id, self.policy_version)
        uniforms = torch.stack([row.uniforms[len(row.tokens)] for row in batch.rows])
        drawn = draw(logprobs, uniforms.to(logprobs.device), sampling)
        taken = logprobs.gather(-1, drawn[:, None])[:, 0]
        ended = []
        for row, token, logprob in zip(batch.rows, drawn.tolist(), taken.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if row.matcher is not None:
                row.matcher.advance([token])
            params = row.request.sampling
            if token in params.stop_token_ids or params.ends_with(row.tokens):
                row.finish_reason = "stop"
            elif len(row.tokens) == params.max_tokens:
                row.finish_reason = "length"
            if row.finish_reason is not None:
                del self._running[row.request.request_id]
                ended.append(row)
        return ended

    def _remove_ended(self) -> None:
        for batch in self._batches:
            live = [n for n, row in enumerate(batch.rows) if row.finish_reason is None]
            if 0 < len(live) < len(batch.rows):
                index = torch.tensor(live, device=self._home)
                batch.cache.reorder_cache(index)
                batch.attention_mask = batch.attention_mask[index]
                batch.ahead = batch.ahead[index]
            batch.rows = [batch.rows[n] for n in live]
        self._batches = [batch for batch in self._batches if batch.rows]
