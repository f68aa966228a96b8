"""Tools that a model calls: users' code and our own, in child processes."""
