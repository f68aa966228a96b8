"""Training of one model on one rank: packed forward and backward, objective, optimizer."""
