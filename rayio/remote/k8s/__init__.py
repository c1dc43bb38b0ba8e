"""A run on Kubernetes: the RayJob for a scenario, with pods as large as its plan asks for. No cluster is asked."""
