"""The test kit: a topology on payloads."""
