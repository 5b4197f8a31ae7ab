"""The test kit: a topology on payloads, and bolts and sinks that misbehave by a seed."""
