"""Train over the machines of a Ray cluster, or of this one: Ray Train starts the processes of `leanformer train`.

    python train_ray.py 2 deit_small_patch16_224 --apply evit --data /shared/imagenet --output /shared/runs/lean

The first word is the number of processes, one a GPU where there are some; the others are those of `leanformer train`.
RAY_ADDRESS names a cluster. A run that was stopped goes on with: python train_ray.py 2 --resume /shared/runs/lean
"""

import os
import sys
from typing import Any

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train(job: dict[str, Any]) -> None:
    """What each process does; Ray has told it its rank."""
    from leanformer.cli import main

    os.chdir(job["folder"])  # Ray starts processes elsewhere
    if main(["train", *job["words"]]):
        raise RuntimeError("leanformer train did not end well; its own line above says why")


def start(workers: int, words: list[str]) -> None:
    """Train with so many processes."""
    ray.init(log_to_driver=True)
    there = ray.cluster_resources()
    if there.get("GPU", 0) >= workers:
        scaling = ScalingConfig(num_workers=workers, use_gpu=True)
    else:
        scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": min(1.0, there["CPU"] / workers)})
    TorchTrainer(train, train_loop_config={"words": words, "folder": os.getcwd()}, scaling_config=scaling).fit()


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    if not torch.cuda.is_available():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start(int(sys.argv[1]), sys.argv[2:])
