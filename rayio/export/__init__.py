"""What happened, for other tools: OpenTelemetry's wire format, Perfetto's, plain text."""
