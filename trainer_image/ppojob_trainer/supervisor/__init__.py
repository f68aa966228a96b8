"""Supervisor: PID 1 of every pod; starts its processes, watches them, and reports their state.

It never ends by itself: it publishes how its processes ended and waits until the pod is ended.
`child` is one process, `pod` decides, `health` publishes, `main` wires.
"""
