"""Clusters: several workers, on one machine or on many, that serve one address.

`Cluster` says where the workers keep the state that they share.
"""

from dovetail.cluster.cluster_options import Cluster

__all__ = ["Cluster"]
