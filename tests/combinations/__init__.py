"""Scenarios in which all pairs of what a fleet may be, get and suffer meet; see CONTRIBUTING.md."""
