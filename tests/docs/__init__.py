"""What stands on the pages of the documentation is tried: code is run, and what it prints is compared."""
