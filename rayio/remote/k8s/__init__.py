"""Runs on Kubernetes: a RayJob for a scenario, with pods sized by its plan. No cluster is contacted."""
