"""The broker itself: publish, schedule, take, ack, give back, recover. Knows Redis, not kombu."""
