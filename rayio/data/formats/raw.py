"""Samples and nothing else: the bytes of one after the other, without a header, a type or a label."""

from __future__ import annotations

from rayio.data.formats.records import Records


class Raw(Records):
    """One open, one request for each run of samples."""

    extension = ".raw"
