"""The controller process: the training loop, data order, journal and metrics of a job.

It holds no model and no tensor. `main` starts it and `wiring` builds it; `fit` is the loop and
`training_step` one iteration of it; `roles` calls the ranks of all roles; `recovery` resumes the
job.
"""
