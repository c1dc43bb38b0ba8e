"""The section ``dataset``: the files and their samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from rayio.kinds import EXTERNALS, FORMATS
from rayio.scenario.address import MODELLED, Path
from rayio.schema.choice import NO_OPTIONS, Choice, Choosing, OptionsOf, named
from rayio.schema.distribution import BytesDistribution
from rayio.schema.fields import Flag, Natural, Positive, Reads, RefusedError, Section, choice, listed, whole


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
    external: Flag = Field(
        False,
        description="If true, other programs wrote the files (DLIO, MLPerf Storage), which are read as they are; "
        "format, num_files, samples_per_file and sample_bytes are then found in them.",
    )
    eval: EvaluationDataset = Field(EvaluationDataset(), description="Files that train.evaluate reads.")

    def kind_of(self, choice: Choice) -> Any:
        """Return the kind that a key chooses: of files of other programs, how they are read."""
        if self.external and choice.registry is FORMATS and self.format in EXTERNALS:
            return EXTERNALS[self.format]
        return super().kind_of(choice)

    def contradictions(self) -> Iterator[str]:
        """Refuse external datasets without files, or of a format that is written and read by rayio alone."""
        if not self.external:
            return
        if self.is_modelled:
            yield f"dataset.external=true: dataset.path={self.path} has no files; give their folder"
        if self.format not in EXTERNALS:
            line = f"dataset.external=true: dataset.format={self.format} is not read as it is; use "
            yield f"{line}{listed([*EXTERNALS])}"

    def idle(self) -> Iterator[str]:
        """State what nobody verifies, and what modelled files do not have."""
        for key in ("compressibility", "files_per_folder") if self.is_modelled else ():
            if (value := getattr(self, key)) != type(self).model_fields[key].default:
                yield f"dataset.{key}={value:g}: files of {self.path} are modelled, and have neither bytes nor folders"
        if self.external:
            yield (
                "dataset.external=true: samples have no ids, so files, their sizes and numbers of samples are "
                "verified, and contents only as far as their format has checksums"
            )

    @property
    def is_modelled(self) -> bool:
        """Return True if there are no bytes anywhere, so that only the storage model can serve."""
        return self.path.startswith(MODELLED)
