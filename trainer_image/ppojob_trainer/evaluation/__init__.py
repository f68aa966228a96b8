"""Responses in files, scored without engine and model: what `ppojob evaluate` does. No torch."""
