"""Real servers and workers for the tests, the demo and the benchmarks; not shipped."""
