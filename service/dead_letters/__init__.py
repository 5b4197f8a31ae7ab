"""The topic of dead letters, for operators: what is in it, sending records again, dropping."""
