"""Control RPC: ZeroMQ with CURVE, msgpack with schemas, idempotent by request ids.

It carries no tensors. Layers, low to high: `wire` (frames), `keys`, `methods` (the table of calls),
`server`, `client`.
"""
