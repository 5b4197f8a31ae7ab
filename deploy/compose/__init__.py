"""What docker-compose.yml mounts."""
