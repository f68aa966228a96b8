from rpc_peers import caller_of, rings, serve  # noqa: F401
