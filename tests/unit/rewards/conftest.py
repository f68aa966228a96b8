from fusion_service import service  # noqa: F401
from reward_functions import source  # noqa: F401
