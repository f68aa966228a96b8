"""Where tensors cross process borders: worlds, meshes, collectives. Nobody else opens c10d."""
