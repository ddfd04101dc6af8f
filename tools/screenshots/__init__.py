"""``python -m tools.screenshots``: the pictures of the page in the documentation."""
