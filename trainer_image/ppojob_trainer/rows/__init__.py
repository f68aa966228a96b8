"""The rows of a step: what a rollout made, in flat unpadded columns."""
