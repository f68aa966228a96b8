"""Reward functions: built-in scorers, custom functions, and the processes that run them."""
