"""Hypothesis without a time limit per example: a busy machine is no defect of the wire."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("wire", deadline=None)
settings.load_profile("wire")
