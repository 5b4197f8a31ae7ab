"""What people and machines see of a run: logs, metrics, health, status page, traces."""
