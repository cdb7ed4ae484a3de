"""The HTTP interface of `docs/design/0002-backend-api.md`, and the page."""
