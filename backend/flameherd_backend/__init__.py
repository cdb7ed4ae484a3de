"""The backend: receives OTLP profiles, stores them, answers queries, serves the page."""

__version__ = "0.1.0"
