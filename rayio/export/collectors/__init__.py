"""Senders of requests to OpenTelemetry collectors."""
