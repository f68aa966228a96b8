"""Conversion of verl's command lines, scripts and YAML to a PPOJob; keys.txt lists verl's keys."""
