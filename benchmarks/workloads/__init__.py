"""The registry. A workload is a file here, and a line below."""

from benchmarks.workload import Workload
from benchmarks.workloads import (
    acks,
    burst,
    consume,
    growth,
    idle,
    lateness,
    memory,
    ping_pong,
    publish,
    round_trip,
    worker,
)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        round_trip.WORKLOAD,
        publish.WORKLOAD,
        consume.WORKLOAD,
        *worker.WORKLOADS,
        lateness.WORKLOAD,
        ping_pong.WORKLOAD,
        acks.WORKLOAD,
        growth.WORKLOAD,
        burst.WORKLOAD,
        idle.WORKLOAD,
        *memory.WORKLOADS,
    )
}
