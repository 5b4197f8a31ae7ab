"""Bolts whose calls end later or have an order: event loop, threads, queues by key."""
