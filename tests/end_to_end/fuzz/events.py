"""What the workers of the fuzz note of a message."""

ACKED, REJECTED, RECEIVED = "acked", "rejected", "received"
