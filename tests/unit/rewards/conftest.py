from reward_functions import source  # noqa: F401
