"""Exact, stateful tokenization for agentic LLM serving, as a Kafka pipeline."""

__version__ = "0.1.0"
