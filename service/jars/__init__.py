"""Java archives by Maven coordinate and SHA-256: a lock file, a cache, and the fetching."""
