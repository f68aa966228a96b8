"""What all tests share: no network, no more threads than asked for, no deadlines of a clock."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
