"""Which replica reads which partition: plans, and the nodes that members and leader share."""
