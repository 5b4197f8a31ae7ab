"""Ordered transactions over ranges of offsets: numbered, recorded, committed in order."""
