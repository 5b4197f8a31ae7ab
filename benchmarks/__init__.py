"""Measurements. Each suite prints for people, and one JSON object as its last line."""
