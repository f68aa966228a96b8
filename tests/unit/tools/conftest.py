from fusion_service import service  # noqa: F401
from rpc_peers import caller_of, rings, serve  # noqa: F401
from tool_calls import index  # noqa: F401
