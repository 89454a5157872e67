"""The OpenAI-compatible HTTP server. Importing it imports FastAPI and uvicorn, not torch."""

from pymllm.server.app import create_app
from pymllm.server.serve import serve

__all__ = ["create_app", "serve"]
