"""The configuration: its sections, where values come from, and errors in them."""
