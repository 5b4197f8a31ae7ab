"""The status page: what a browser shows of the running process. Read-only."""
