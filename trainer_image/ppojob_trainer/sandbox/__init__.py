"""Runs programs that nobody vouches for: code of responses now, tools of agents later."""
