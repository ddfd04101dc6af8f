"""``python -m screenshots``: the pictures of the page in the documentation."""
