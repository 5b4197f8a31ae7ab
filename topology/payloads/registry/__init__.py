"""What serialisers with a Schema Registry wrote: Avro, Protobuf and JSON Schema.

confluent-kafka's own deserialisers do the work. They ask the registry when they meet a
schema that they have not cached, in the middle of a call. The owner thread must not wait for
that, so the client has a `gate`: only the thread of `fetching` gets through. A call that is
stopped at the gate is made once on that thread, which fills every cache it needs, and then
once more by the owner. Only this package imports confluent_kafka, and only when it is used.
"""
