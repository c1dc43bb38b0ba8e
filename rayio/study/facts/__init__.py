"""Published facts of workloads, checked against simulations."""
