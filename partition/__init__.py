"""The PartitionManager and all it stands on: ledger, retries, fetching, offsets."""
