"""A run as one page: report.html, with figures and tables, that opens without a network."""

from __future__ import annotations

from rayio.report.build import report

__all__ = ["report"]
