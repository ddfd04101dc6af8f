"""`celery delayed`, the doctor, the forwarder and the metrics, on a real server."""
