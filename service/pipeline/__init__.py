"""The loop from fetch to commit, and what it works with."""
