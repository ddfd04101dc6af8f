"""The part that speaks to kombu: transports, channels, acks and rejects, on top of the broker."""

from kombu_redisdelay.transport.cluster import ClusterTransport, SecureClusterTransport
from kombu_redisdelay.transport.sentinel import SecureSentinelTransport, SentinelTransport
from kombu_redisdelay.transport.transports import SecureTransport, Transport

__all__ = (
    "ClusterTransport",
    "SecureClusterTransport",
    "SecureSentinelTransport",
    "SecureTransport",
    "SentinelTransport",
    "Transport",
)
