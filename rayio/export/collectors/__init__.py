"""The way to an OpenTelemetry collector: it takes requests as bytes and says what became of them."""
