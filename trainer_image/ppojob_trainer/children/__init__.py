"""Child processes with hard limits: for users' reward code and publishers' templates."""
