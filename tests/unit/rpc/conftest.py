from rpc_peers import caller_of, free_peer, rings, serve  # noqa: F401
