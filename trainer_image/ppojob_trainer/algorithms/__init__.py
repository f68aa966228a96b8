"""Algorithms: advantage estimators and losses as pure functions of tensors, one file an idea.

Nothing here knows a configuration, a device or a process: what an algorithm needs comes in as an
argument. The visible tables of names (`ADVANTAGES`, `CRITIC_ADVANTAGES`, `POLICY_LOSSES`,
`AGGREGATIONS`, `KL`) are what a PPOJob may ask for; docs/algorithms.md explains each.
"""
