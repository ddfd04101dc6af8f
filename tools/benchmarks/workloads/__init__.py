"""The registry. A workload is a file here, and a line below."""

from tools.benchmarks.workload import Workload
from tools.benchmarks.workloads import (
    acks,
    burst,
    cluster,
    consume,
    control,
    fair,
    fair_fleet,
    fleet,
    foreign,
    forward,
    growth,
    idle,
    kills,
    lateness,
    line,
    memory,
    ping_pong,
    pools,
    publish,
    queues,
    together,
    unique,
    unique_held,
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
        foreign.WORKLOAD,
        forward.WORKLOAD,
        idle.WORKLOAD,
        *memory.WORKLOADS,
        queues.WORKLOAD,
        line.WORKLOAD,
        together.WORKLOAD,
        *fleet.WORKLOADS,
        *cluster.WORKLOADS,
        *control.WORKLOADS,
        *pools.WORKLOADS,
        unique.WORKLOAD,
        unique_held.WORKLOAD,
        fair.WORKLOAD,
        *fair_fleet.WORKLOADS,
        kills.WORKLOAD,
    )
}
