"""Reading Kafka, with librdkafka."""
