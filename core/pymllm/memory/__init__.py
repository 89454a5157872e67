"""Who holds which part of the device's memory: KV pages and per-request slots, two separate resources."""

from pymllm.memory.pages import PagePool
from pymllm.memory.slots import SlotPool

__all__ = ["PagePool", "SlotPool"]
