"""Streams, bolts and the executor that runs them over chunks of records."""
