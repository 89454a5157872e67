"""The handlers, one file per family of routes."""
