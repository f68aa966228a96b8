"""The PPOJob resource: models, validation, topology, resolved run configuration."""
