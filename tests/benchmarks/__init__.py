"""The parts of the benchmark that compute, and its smallest measurements. No test asks how fast it is."""
