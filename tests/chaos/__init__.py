"""`make chaos`: replicas that come and go at random, and one that must stay small for an hour."""
