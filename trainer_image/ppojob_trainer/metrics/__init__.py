"""What a step is measured by: pure statistics, names, times, and where they are written.

Nothing here loads torch; the controller imports all of it.
"""
