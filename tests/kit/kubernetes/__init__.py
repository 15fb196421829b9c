"""The real API server of Kubernetes on loopback for tests, and a small kubelet that runs its pods as processes.

:mod:`programs` builds the programs that have no package, :mod:`cluster` starts them, :mod:`kubelet` runs pods.
``tests/kit/README.md`` lists the limits of the small kubelet.
"""

from tests.kit.kubernetes.cluster import KubernetesCluster, kubernetes

__all__ = ["KubernetesCluster", "kubernetes"]
