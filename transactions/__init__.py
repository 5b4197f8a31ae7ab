"""Ordered transactions over fixed ranges of offsets (not built yet, but its rules stand)."""
