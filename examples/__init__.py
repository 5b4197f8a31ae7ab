"""Pipelines to learn from; each folder is one, with its own README."""
