"""Rows that are conversations: the model speaks, tools answer, the model goes on."""
