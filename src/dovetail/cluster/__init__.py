"""Clusters: several workers, on one machine or on many, that serve one address.

`Cluster` says where the workers keep the state that they share. It is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.cluster.cluster_options import Cluster as Cluster

_MODULE_BY_NAME = {"Cluster": "dovetail.cluster.cluster_options"}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
