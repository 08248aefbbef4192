"""Workloads, benchmarks and generated sessions."""
