"""The operator as it runs in production: a process of ``kopf run``, forked from one that has loaded its libraries."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx

from support.control_plane import OPERATOR, write_kubeconfig
from support.ports import free_port
from support.zygote import Zygote


class OperatorProcess:
    """Started at once; `kill` and `stop` may be called again."""

    def __init__(self, zygote: Zygote, folder: Path, server: str, namespace: str | None, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.liveness = f"http://127.0.0.1:{free_port()}/healthz"
        self.metrics_port = free_port()
        kubeconfig = write_kubeconfig(folder / "operator.yaml", server, OPERATOR)
        given = {"trainer_image": "heterotrain/trainer:test", "metrics_port": self.metrics_port, **settings}
        env = {key: value for key, value in os.environ.items() if not key.startswith(("KUBERNETES_", "KOPF_"))}
        env |= {"KUBECONFIG": str(kubeconfig)}
        env |= {f"HETEROTRAIN_OPERATOR_{key.upper()}": str(value) for key, value in given.items()}
        scope = ["--all-namespaces"] if namespace is None else []
        if namespace is not None:
            env["KOPF_RUN_NAMESPACES"] = namespace
        command = ["-m", "kopf", "run", "--standalone", f"--liveness={self.liveness}", *scope]
        command += ["-m", "heterotrain_operator.handlers"]
        self.process = zygote.start(command, env, folder, "operator")
        self.log = self.process.stderr

    def kill(self) -> None:
        """As a node that goes away: no chance to clean up."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """As Kubernetes stops a pod."""
        if self.process.poll() is None:
            self.process.kill(signal.SIGTERM)
            self.process.wait(15)

    def alive(self) -> int:
        """The status of the liveness probe; 0: no answer."""
        try:
            return httpx.get(self.liveness, timeout=5).status_code
        except httpx.TransportError:
            return 0

    def metrics(self) -> str:
        """What Prometheus would read."""
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5).text

    def ready(self) -> int:
        """The status of the readiness probe."""
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/readyz", timeout=5).status_code

    def errors(self) -> list[str]:
        """Lines of the log that tell of something unexpected."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if "[ERROR" in line or "Traceback" in line or "CRITICAL" in line]
