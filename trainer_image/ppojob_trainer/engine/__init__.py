"""Training of one model on one rank: packed forward and backward passes, objectives, optimizers."""
