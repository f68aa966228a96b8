"""Offline evaluation (`ppojob evaluate`): scoring of responses, without a model; no torch."""
