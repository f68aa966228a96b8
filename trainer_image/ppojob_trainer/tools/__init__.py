"""Tools of the model: users' code and built-in ones, run in child processes."""
