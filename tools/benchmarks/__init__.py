"""How fast the transport is, beside others on the same machine: ``python -m tools.benchmarks``."""
