"""A schema registry: Apicurio's, which speaks Confluent's protocol."""

from __future__ import annotations

import subprocess
import tempfile
import time
import urllib.request

from weir_evaluation import jars
from weir_evaluation.brokers.kafka import JAVA, START, free_ports


class Registry:
    """A registry in memory while a ``with`` block lasts, at ``url``."""

    def __init__(self) -> None:
        (self._program,) = jars.folder("registry").glob("*-runner.jar")

    def __enter__(self) -> Registry:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        settings = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
        command = ["setpriv", "--pdeathsig", "KILL", "java", *JAVA, *settings, "-jar", str(self._program)]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        ends = time.monotonic() + START
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=1):
                    return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > ends:
                    self.__exit__()
                    raise
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
