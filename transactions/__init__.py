"""Ordered transactions over fixed ranges of offsets (not built yet; the rules of the room stand)."""
