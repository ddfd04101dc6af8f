"""The public API, through kombu and on a real server."""
