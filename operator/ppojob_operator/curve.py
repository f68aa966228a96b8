"""CURVE key pairs, made here so that no pod needs a right to make Secrets."""

import zmq


def key_pair() -> tuple[str, str]:
    """A fresh public and secret key, 40 letters of Z85 each."""
    public, secret = zmq.curve_keypair()
    return public.decode("ascii"), secret.decode("ascii")
