"""What is done for a release, beside the tests: RELEASING.md."""
