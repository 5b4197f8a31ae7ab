"""The simulator: the real hearts in a seeded world. See docs/how-to/simulate.md."""
