"""Tests against a real Kubernetes API server, built from its Go modules."""
