"""Real sentinels, a primary and its replicas, and what becomes of messages when another one takes over."""
