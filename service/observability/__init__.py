"""Logs, metrics, health, the status page and traces of a run."""
