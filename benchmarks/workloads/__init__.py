"""The registry. A workload is a file here, and a line below."""

from benchmarks.workload import Workload
from benchmarks.workloads import consume, publish, round_trip, worker

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        round_trip.WORKLOAD,
        publish.WORKLOAD,
        consume.WORKLOAD,
        *worker.WORKLOADS,
    )
}
