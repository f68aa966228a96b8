"""Datasets: files, chat templates, prompt order, generators."""
