"""State: aggregates of a stream by key, kept where their txids are."""
