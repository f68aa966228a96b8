"""Agent loop: multi-turn rows in which the model calls tools or talks to a user simulator."""
