"""Exact tokenization: a tokenizer.json in, ids and byte lengths out, and where text may be cut."""
