"""The way to a server, and its scripts."""
