"""Algorithms: advantage estimators and losses as pure functions of tensors.

They read no configuration, device or process. The tables (`ADVANTAGES`, `CRITIC_ADVANTAGES`,
`POLICY_LOSSES`, `AGGREGATIONS`, `KL`, ...) list what a PPOJob may name; see docs/algorithms.md.
"""
