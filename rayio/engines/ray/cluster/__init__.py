"""Ray clusters: connections, jobs, nodes and slots."""
