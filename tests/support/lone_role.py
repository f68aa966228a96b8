"""A role of one rank, for tests of what a rank does with its rows."""

from ppojob_api.v1alpha1.job import PPOJobSpec


def grpo_spec(prompts: int, samples: int) -> PPOJobSpec:
    """The spec of a small job."""
    return PPOJobSpec.model_validate(
        {
            "model": {"path": "models/m"},
            "data": {"train": [{"path": "a.parquet"}]},
            "algorithm": {"type": "grpo", "promptsPerStep": prompts, "samplesPerPrompt": samples},
            "steps": {"total": 1},
        }
    )


class Alone:
    """The link of a role of one rank: nobody is asked."""

    member, size = 0, 1

    def exchange(self, outgoing, incoming):
        assert not outgoing
        assert not incoming
