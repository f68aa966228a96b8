"""Metrics of a step: pure statistics, names, times, and sinks.

Nothing here loads torch; the controller imports all of it.
"""
