"""The registry. A workload is a file here, and a line below."""

from benchmarks.workload import Workload
from benchmarks.workloads import (
    acks,
    burst,
    consume,
    forward,
    growth,
    idle,
    lateness,
    memory,
    ping_pong,
    publish,
    worker,
)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        publish.WORKLOAD,
        consume.WORKLOAD,
        *worker.WORKLOADS,
        lateness.WORKLOAD,
        ping_pong.WORKLOAD,
        acks.WORKLOAD,
        growth.WORKLOAD,
        burst.WORKLOAD,
        forward.WORKLOAD,
        idle.WORKLOAD,
        *memory.WORKLOADS,
    )
}
