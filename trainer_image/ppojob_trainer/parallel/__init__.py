"""Distributed ranks: worlds, process groups, meshes, collectives. Only code here uses c10d."""
