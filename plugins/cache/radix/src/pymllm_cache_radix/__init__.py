"""Prefix reuse through a radix tree of pages."""
