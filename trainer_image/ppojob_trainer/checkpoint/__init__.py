"""Checkpoints of the whole job, from which a killed job resumes bit for bit."""
