"""Runs on other machines: Ray jobs and Kubernetes."""
