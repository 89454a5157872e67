"""Benchmarks: offline throughput, offline latency, and a running server under load.

Each measuring module states what it measures and documents the fields of its JSONL lines; all of them share
:mod:`pymllm.bench.stats` (statistics) and :mod:`pymllm.bench.results` (metadata and files).
"""
