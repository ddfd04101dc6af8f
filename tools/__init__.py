"""What develops this project: see CONTRIBUTING.md."""
