"""Windows, simulated. A Python that has this folder on its path has not what Windows has not."""
