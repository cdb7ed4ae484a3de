"""From an OTLP message to rows of the store, in worker processes."""
