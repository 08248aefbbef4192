"""Exact every-prefix BPE: the canonical last token after each appended symbol."""
