"""Language models in Hugging Face folders: families, loading, sharding, names of tensors."""
