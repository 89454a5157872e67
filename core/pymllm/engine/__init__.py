"""The engine: requests, scheduling, running and sampling."""
