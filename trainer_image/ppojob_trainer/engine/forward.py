"""One packed forward pass: rows in, what a head says of their response tokens out."""

from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.engine.attention import plan_attention
from ppojob_trainer.engine.head import Head, TokenOutputs
from ppojob_trainer.engine.layout import pack_rows
from ppojob_trainer.parallel.fsdp import as_forward
from ppojob_trainer.rows.experience import Experience


def packed_outputs(
    model: PreTrainedModel, head: Head, rows: Experience, *, share_prompts: bool = True
) -> TokenOutputs:
    """Compute a head's outputs of every trained token; those of the others are 0.

    Only hidden states that predict a trained token meet the head.

    Args:
        model: under `use_packed_attention`.
        head: what is asked.
        rows: at least one, in host memory.
        share_prompts: compute the prompt of a group once.

    Returns:
        Tensors (tokens,) float32 in row order, in host memory, where the columns of the rows are.
    """
    config = model.config
    packed = pack_rows(rows, share_prompts=share_prompts).to(model.device)
    plan = plan_attention(
        packed.spans,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
    ).to(model.device)

    def compute() -> TokenOutputs:
        hidden = model.base_model(
            input_ids=packed.input_ids[None],
            position_ids=packed.position_ids[None],
            use_cache=False,
            attention_plan=plan,
        ).last_hidden_state[0]
        return head(model, hidden.index_select(0, packed.predictors), packed.targets)

    return tuple(_spread(output.cpu(), rows.mask) for output in as_forward(model, compute))


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values of the trained tokens among zeros: (trained,) -> (tokens,)."""
    return values if mask.all() else values.new_zeros(mask.shape).masked_scatter(mask, values)
