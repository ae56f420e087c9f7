"""The lab: a real Spark cluster of several hosts on one machine, with a network that can be measured and broken.

Every host is a network namespace with a link of its own, shaped to the bandwidth that you choose. On it runs a worker
of a Spark standalone cluster. What two hosts say to each other crosses their links, and the kernel counts the bytes.

>>> from weir_evaluation.lab import LabCluster
>>> LabCluster(hosts=0)
Traceback (most recent call last):
weir_evaluation.lab.errors.LabError: a lab needs 1 to 200 hosts, not 0

``with LabCluster(hosts=3, bandwidth="100mbit") as lab:`` starts one, ``lab.session()`` is a Spark session on it, and
``lab.kill("h2")`` is a bad day. ``weir lab up`` does the same for the command line. It needs root and iproute2;
:func:`missing` says what is not there.
"""

from weir_evaluation.lab.cluster import Host, LabCluster
from weir_evaluation.lab.needs import missing

__all__ = ["Host", "LabCluster", "missing"]
