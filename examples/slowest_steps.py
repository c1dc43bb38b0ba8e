"""What did the slowest steps of a run wait for? Real files, one process, spans as a pandas table."""

from __future__ import annotations

import rayio


def main() -> None:
    """Run a small training, and print the phases of the slowest steps."""
    run = rayio.run(
        "unet3d-small",
        {
            "dataset.path": "data/slowest",
            "dataset.num_files": 42,
            "train.epochs": 2,
            "train.compute": "20 ms",
            "checkpoint.every": {"epochs": 1},
        },
        engine="local",
        out="runs/slowest",
    )
    spans = run.spans()
    phases = spans[
        (spans.role == "rank") & (spans.step >= 0) & spans.name.isin(["data_wait", "compute", "sync", "checkpoint"])
    ]
    by_step = phases.pivot_table(index=["epoch", "step"], columns="name", values="duration_ns", aggfunc="max") / 1e6
    slowest = by_step.assign(all=by_step.sum(axis=1)).sort_values("all", ascending=False).head(5)
    print("milliseconds of the slowest rank in each phase, the five slowest steps first")
    print(slowest.round(1).fillna(0.0).to_string())
    blamed = slowest.drop(columns=["all", "compute"]).sum().idxmax()
    print(f"apart from compute, they spent most time in {blamed}")


if __name__ == "__main__":
    main()
