"""What makes a job run on a cluster: today the pods it consists of, rendered purely."""
