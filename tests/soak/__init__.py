"""What is left in Redis, and in a worker, after very many queues and tasks: ``python -m tests.soak``."""
