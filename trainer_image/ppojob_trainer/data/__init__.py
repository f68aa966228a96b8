"""Prompts: files, chat templates, order, generators."""
