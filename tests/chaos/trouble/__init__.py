"""Servers in trouble: they answer, and refuse. No worker ends, and nothing is lost."""
