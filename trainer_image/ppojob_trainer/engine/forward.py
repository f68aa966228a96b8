"""One packed forward pass: rows in, log-probabilities of their response tokens out."""

from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.engine.attention import plan_attention
from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs
from ppojob_trainer.engine.layout import pack_rows
from ppojob_trainer.rows.experience import Experience


def packed_logprobs(
    model: PreTrainedModel,
    rows: Experience,
    settings: LogprobSettings,
    *,
    share_prompts: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute log pi(a_t|s_t) of every response token, and the entropy of pi(.|s_t).

    Only hidden states that predict a response token meet the output layer.

    Args:
        model: a causal model under `use_packed_attention`.
        rows: at least one, in host memory.
        settings: temperature, tile size, entropy.
        share_prompts: compute the prompt of a group once.

    Returns:
        logprobs (tokens,) float32 in row order, and entropy (tokens,) or None; in host memory,
        where the columns of the rows are.
    """
    config = model.config
    packed = pack_rows(rows, share_prompts=share_prompts).to(model.device)
    plan = plan_attention(
        packed.spans,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
    ).to(model.device)
    hidden = model.base_model(
        input_ids=packed.input_ids[None],
        position_ids=packed.position_ids[None],
        use_cache=False,
        attention_plan=plan,
    ).last_hidden_state[0]
    logprobs, entropy = fused_logprobs(
        hidden.index_select(0, packed.predictors),
        model.get_output_embeddings().weight,
        packed.targets,
        settings,
    )
    return logprobs.cpu(), None if entropy is None else entropy.cpu()
