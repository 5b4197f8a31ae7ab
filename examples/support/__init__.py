"""Servers that examples and tests start beside those of `headrace dev up`."""
