"""Generation of responses: one protocol, its engines, and the seeds that make it repeatable."""
