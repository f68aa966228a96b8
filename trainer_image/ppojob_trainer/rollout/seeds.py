"""The seed of every sample, a function of what is sampled and of nothing else.

A resumed, a re-sharded and an undisturbed run must draw the same tokens, so a seed knows no clock,
no arrival order and no rank.
"""

import hashlib
from typing import Literal

Purpose = Literal["train", "validation"]

# One below the 63 bits that a signed 64-bit seed has room for: adding a sample's index never
# overflows.
_SEED_BITS = 62


def sample_seed(
    job_seed: int,
    step: int,
    prompt_id: int,
    sample_index: int,
    purpose: Purpose,
    segment: int = 0,
) -> int:
    """Return the seed of a segment: ``H(job seed, purpose, step, prompt id, segment) + sample``.

    The index is added after the hash, not hashed: torch's CPU generator keeps the low 32 bits of a
    seed only, and consecutive numbers stay distinct there, so the samples of one prompt never share
    a stream. Engines that draw n samples themselves (vLLM's ``n``) number them the same way.

    Args:
        job_seed: ``spec.seed``.
        step: The training step, from 0; for validation, the step after which it happens.
        prompt_id: The prompt's number within its data set.
        sample_index: The sample's number within its prompt, from 0.
        purpose: Keeps training and validation apart where their step and prompt ids coincide.
        segment: How many segments of the row the policy has drawn before; the first is not hashed.

    Returns:
        A seed in ``[0, 2**63)``.

    Raises:
        ValueError: If `sample_index` is negative.
    """
    if sample_index < 0:
        raise ValueError(f"sample_index: got {sample_index}: must be 0 or more")
    text = f"ppojob/{job_seed}/{purpose}/{step}/{prompt_id}" + (f"/{segment}" if segment else "")
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - _SEED_BITS)) + sample_index
