"""The page, on a real server."""
