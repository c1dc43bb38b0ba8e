"""Ray clusters: reached, started, asked."""
