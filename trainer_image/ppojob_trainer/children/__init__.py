"""Child processes that can always be ended: for users' reward code and publishers' templates."""
