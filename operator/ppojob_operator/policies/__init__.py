"""What the life of a job follows from: pure functions of the job, what is seen, and the time."""
