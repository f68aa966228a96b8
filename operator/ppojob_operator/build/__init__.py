"""What a job is made of, as pure functions of its run configuration."""
