"""Ready-made bolts that decode the bytes of records: text, JSON, and the registry's formats."""
