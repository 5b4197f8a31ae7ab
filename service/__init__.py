"""The process: configuration, wiring, the pipeline loop, lifecycle, HTTP, metrics, logs."""
