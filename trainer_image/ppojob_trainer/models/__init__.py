"""Language models as they lie in folders: loading, and the names of their tensors."""
