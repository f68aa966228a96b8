"""verl's command lines, scripts and YAML as a PPOJob; every key of verl's stands in keys.txt."""
