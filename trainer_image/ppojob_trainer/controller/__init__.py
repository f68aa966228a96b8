"""The process that drives a job: the loop, the order of data, the journal, the metrics.

It holds no model and no tensor. `main` wires; `fit` is the loop and `training_step` one pass of it;
`roles` are the processes it speaks to; `recovery` finds out how far the job is.
"""
