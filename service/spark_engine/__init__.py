"""The spark engine: ranges planned here, run by executors, committed here in order."""
