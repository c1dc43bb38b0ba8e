"""The section ``dataset``: the files and their samples."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rayio.kinds import FORMATS
from rayio.scenario.address import MODELLED, Path
from rayio.schema.choice import NO_OPTIONS, Choice, Choosing, OptionsOf, named
from rayio.schema.distribution import BytesDistribution
from rayio.schema.fields import Natural, Positive, Reads, RefusedError, Section, choice, whole


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 16:
        raise RefusedError("must be a number from 1 to 16")
    return float(value)


class EvaluationDataset(Section):
    """The files that an evaluation reads; keys that are left out are as in the training dataset.

    They lie in a separate folder, ``<dataset.path>-eval`` unless ``path`` names another, and hold other samples.
    """

    num_files: Natural = Field(0, description="Files of the evaluation dataset.")
    path: Path | None = Field(None, description="Folder of the evaluation dataset; by default <dataset.path>-eval.")
    samples_per_file: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Samples in each of its files; by default as in training."
    )
    sample_bytes: BytesDistribution | None = Field(
        None, description="Bytes of a sample, drawn once per file; by default as in training."
    )


class Dataset(Choosing):
    """The files to read. ``sample_bytes`` is drawn once per file, or with ``sizes`` for each sample."""

    choices = (Choice("format", FORMATS, "options"),)
    path: Path = Field(description="Folder of the dataset, or model://<name>: no bytes anywhere, storage is a model.")
    format: Annotated[str, named(FORMATS)] = Field("npz", description="How samples lie in files.")
    options: Annotated[Section, OptionsOf("format", FORMATS)] = NO_OPTIONS
    num_files: Positive = Field(description="Files of the dataset; with loader.scaling: weak, those of each rank.")
    samples_per_file: Positive = Field(1, description="Samples in each file.")
    sample_bytes: BytesDistribution = Field(description="Bytes of a sample, drawn once per file or for each sample.")
    sizes: Annotated[str, choice("per_file", "per_sample")] = Field(
        "per_file", description="Draws of `sample_bytes`: one for all samples of a file, or one for each sample."
    )
    compressibility: Annotated[float, Reads(_factor, {"type": "number", "minimum": 1, "maximum": 16})] = Field(
        1.0, description="Factor by which zlib shrinks a sample's bytes; 1 is random bytes, which nothing shrinks."
    )
    files_per_folder: Positive = Field(1000, description="Files in each folder of the dataset.")
    eval: EvaluationDataset = Field(EvaluationDataset(), description="Files that train.evaluate reads.")

    @property
    def is_modelled(self) -> bool:
        """Return True if there are no bytes anywhere, so that only the storage model can serve."""
        return self.path.startswith(MODELLED)
