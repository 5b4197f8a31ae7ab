"""What Storm's Kafka spouts left in ZooKeeper."""
