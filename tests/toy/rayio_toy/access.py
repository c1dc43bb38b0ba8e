"""A way to walk files: a reader keeps the files open that it has read, and looks samples up in them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.access.contract import Access, Files
from rayio.data.formats import Format
from rayio.data.layout import Batch, Layout
from rayio.schema.fields import Section, whole
from rayio.storage.base import Opener, Placed, Places, Requests

#: The files of a dataset that are open, by their paths; the model of one has no handles.
Open = dict[str, BinaryIO | None]


class KeptOpenOptions(Section):
    """What ``loader`` may say of this access."""

    most_open: Annotated[int, whole(1)] = Field(64, description="Files that stay open; with more all are closed.")


class KeptOpen(Access):
    """Only a reader's first read of a file opens it."""

    options = KeptOpenOptions

    def requests(self, files: Files, batch: Batch, kept: Open | None) -> tuple[Requests, Open | None]:
        asked, were_open = files.form.requests(files.layout, batch), kept or {}
        paths = opened_paths(files.form, files.layout, batch.files)
        new = {path for path in paths if path not in were_open}
        places = None if asked.places is None else partial(_placed, asked.places, new)
        return asked._replace(num_opens=len(new), places=places), _left(files, {**dict.fromkeys(paths), **were_open})

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Open | None
    ) -> tuple[NDArray[np.int64], Open | None]:
        is_open: Open = dict(kept or {})

        def opened(path: str) -> Any:
            file: Any = opener(path, is_open.get(path))
            file.is_kept, is_open[path] = True, file
            return file

        return files.form.read(opened, files.layout, batch, out), _left(files, is_open)

    def close(self, kept: Open) -> None:
        for file in kept.values():
            if file is not None:
                file.close()


def _left(files: Files, is_open: Open) -> Open | None:
    """Return what stays open of so many files."""
    assert isinstance(files.options, KeptOpenOptions)
    if len(is_open) <= files.options.most_open:
        return is_open
    KeptOpen().close(is_open)
    return None


def _placed(places: Places, new: set[str]) -> Placed:
    """Return where requests go, of which the first to each new file opens it."""
    paths, file, offset = places()
    first = np.sort(np.unique(file, return_index=True)[1])
    return Placed(paths, file, offset, np.array([at for at in first if paths[file[at]] in new], np.int64))


def opened_paths(form: Format, layout: Layout, files: NDArray[np.int64]) -> list[str]:
    """Return the paths that a batch with samples in ``files`` opens, in order: ``beside`` files come first."""
    if not getattr(form, "has_files", True):
        return []
    paths = []
    for file in np.unique(files).tolist():
        path = layout.path(file)
        paths += [path.removesuffix(layout.extension) + suffix for suffix in getattr(form, "beside", ())]
        paths.append(path)
    return paths
