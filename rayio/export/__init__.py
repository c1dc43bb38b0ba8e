"""Export of spans for other tools: OTLP, Perfetto, plain text."""
