"""Control RPC: ZeroMQ with CURVE, msgpack by schema, request ids that make a call safe to repeat.

No tensor passes here. Layers, low to high: `wire` (frames), `keys` (who is who), `methods` (every
call with its types, limits and callers), `server` (which does work once), `client`.
"""
