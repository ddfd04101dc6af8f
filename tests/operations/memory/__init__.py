"""What fills Redis, on a real server."""
