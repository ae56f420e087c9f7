"""Apache Hadoop's mini cluster: HDFS and YARN in one JVM, on this machine's loopback, for tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway

from weir_evaluation import jars

JAVA = ["-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
YARN = {
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.resource.memory-mb": "8192",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}


class Hadoop:
    """One name node, one data node, one resource manager and ``nodes`` node managers, while a ``with`` block lasts.

    ``uri`` is that of HDFS, ``configuration`` the folder that ``HADOOP_CONF_DIR`` has to name. Jars are those of
    ``jars/hadoop.xml``; :class:`~weir_evaluation.jars.NoJars` says where they are missing.
    """

    def __init__(self, nodes: int = 0) -> None:
        self._classes = f"{jars.folder('hadoop')}/*"
        self.nodes = nodes
        self._services: list[Any] = []

    def __enter__(self) -> Hadoop:
        self.folder = Path(tempfile.mkdtemp(prefix="weir-hadoop-"))
        self.configuration = self.folder / "conf"
        self.configuration.mkdir()
        self._log = (self.folder / "log").open("w")
        self._gateway = JavaGateway.launch_gateway(
            classpath=self._classes,
            die_on_exit=True,
            javaopts=[*JAVA, f"-Dhadoop.log.dir={self.folder}", f"-Dtest.build.data={self.folder}"],
            redirect_stdout=self._log,
            redirect_stderr=self._log,
            cwd=os.fspath(self.folder),
        )
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        hadoop = self._gateway.jvm.org.apache.hadoop
        settings = hadoop.conf.Configuration()
        settings.set("hdfs.minidfs.basedir", f"{self.folder}/hdfs")
        settings.set("dfs.permissions.enabled", "false")
        builder = getattr(hadoop.hdfs, "MiniDFSCluster$Builder")
        self._hdfs = builder(settings).numDataNodes(1).build()
        self._services.append(self._hdfs.shutdown)
        self._hdfs.waitActive()
        self.uri = self._hdfs.getURI().toString()
        settings = hadoop.yarn.conf.YarnConfiguration(self._hdfs.getConfiguration(0))
        if self.nodes:
            for name, value in YARN.items():
                settings.set(name, value)
            self._yarn = hadoop.yarn.server.MiniYARNCluster("weir", self.nodes, 1, 1)
            self._services.append(self._yarn.stop)
            self._yarn.init(settings)
            self._yarn.start()
            if not self._yarn.waitForNodeManagersToConnect(30_000):
                raise RuntimeError("YARN: its nodes did not come within 30 s")
            settings = self._yarn.getConfig()
        settings.unset("net.topology.node.switch.mapping.impl")  # a class that only the mini cluster has
        out = self._gateway.jvm.java.io.FileOutputStream(f"{self.configuration}/core-site.xml")
        settings.writeXml(out)
        out.close()
        for name in ("hdfs-site", "yarn-site"):
            shutil.copy(self.configuration / "core-site.xml", self.configuration / f"{name}.xml")

    def __exit__(self, *_: object) -> None:
        while self._services:
            self._services.pop()()
        self._gateway.shutdown()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
