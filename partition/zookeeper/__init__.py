"""Offsets in ZooKeeper, with kazoo."""
