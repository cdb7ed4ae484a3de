"""Takes OTLP profiles over gRPC and HTTP, and answers when they are stored."""
