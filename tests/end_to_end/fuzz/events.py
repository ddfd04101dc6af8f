"""What the workers of the fuzz note of a message."""

ACKED, REJECTED = "acked", "rejected"
