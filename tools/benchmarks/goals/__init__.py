"""What has to come out. A module for each family of workloads, and its goals below."""

from tools.benchmarks.goals import control, failed, fair, pools, reach, throughput, unique, waiting
from tools.benchmarks.goals.goal import Goal

__all__ = ["GOALS", "Goal"]

GOALS: list[Goal] = [
    *throughput.GOALS,
    *waiting.GOALS,
    *reach.GOALS,
    *unique.GOALS,
    *failed.GOALS,
    *fair.GOALS,
    *control.GOALS,
    *pools.GOALS,
]
