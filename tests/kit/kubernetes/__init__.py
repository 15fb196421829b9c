"""The real API server of Kubernetes for tests, on loopback, and a small kubelet that runs its pods as processes.

:mod:`programs` builds what there is no package of, :mod:`cluster` starts it, :mod:`kubelet` runs pods. What the small
kubelet cannot prove is listed in ``docs/kubernetes.md``.
"""

from tests.kit.kubernetes.cluster import KubernetesCluster, kubernetes

__all__ = ["KubernetesCluster", "kubernetes"]
