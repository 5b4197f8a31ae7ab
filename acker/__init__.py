"""The XOR acker: which record trees are complete, failed or expired."""
