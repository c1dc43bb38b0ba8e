"""The placement group of a run's nodes on a cluster."""

from __future__ import annotations

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from rayio.engines.ray.cluster.connect import Connection, grounds_of
from rayio.engines.ray.cluster.slots import nodes_with
from rayio.errors import ClusterError
from rayio.model.plan import Plan

#: Ray's label of a node's id.
NODE_ID = "ray.io/node-id"


def room_for(plan: Plan, connection: Connection, run: str, seconds: float) -> tuple[PlacementGroup, dict[str, str]]:
    """Place a run's nodes; return the group and the Ray node of each bundle, by its number as text.

    No bundle is placed on a node of ``cluster.reader_pool``, which it would keep alive.

    Raises:
        ClusterError: no room within ``seconds``.
    """
    laid, pool = grounds_of(plan, connection), plan.cluster.reader_pool
    labels = laid.labels
    if pool is not None and (pooled := [*nodes_with(pool.resource)]):
        elsewhere = {NODE_ID: f"!in({','.join(pooled)})"}
        labels = [label | elsewhere for label in labels or [{}] * len(laid.bundles)]
    group = placement_group(laid.bundles, strategy=laid.strategy, name=run, bundle_label_selector=labels or None)
    if not group.wait(seconds):
        raise ClusterError(
            f"no room for {len(laid.bundles)} bundles ({laid.strategy}) on {len(connection.nodes)} Ray nodes "
            f"within {plan.cluster.start_deadline:g} s; free some CPU or lower cluster.nodes"
        )
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return group, {str(bundle): nodes[bundle] for bundle in sorted(nodes)}
