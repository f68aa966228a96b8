"""Control RPC: ZeroMQ with CURVE, msgpack by schema, request ids that make retries safe.

No tensor is sent here. Layers, low to high: `wire` (frames), `keys` (key pairs), `methods` (every
call with its types, limits and callers), `server` (which does work once), `client`.
"""
