"""leanformer profile: where a model's time goes, component by component."""

from dataclasses import asdict
from pathlib import Path

from ..measure import profile as measure
from ..measure.console import console
from ..visualise import latency_breakdown
from .common import Apply, Models, Set, side_by_side


def profile(
    models: Models = (),
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    device: str | None = None,
    batch: int = 1,
    dtype: str | None = None,
    modes: tuple[str, ...] = ("eager",),
    repeats: int = 5,
    fused: bool = True,
    output: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Latency by component, by timing each component's modules alone on the inputs they really get.

    Each --apply adds the first model with these methods on it, joined by +.

    Example: leanformer profile deit_small_patch16_224 --apply evit:keep_rate=0.7 --apply repa --figure latency.png

    Args:
        models: Names or leanformer checkpoints.
        methods: Methods on the first model, for one more row: name:option=value, several joined by +.
        checkpoint: Weights for the models given by name.
        arguments: An argument of the models given by name, for example img_size=384; may be given several times.
        device: cpu or cuda; by default the GPU if there is one.
        batch: Images at a time.
        dtype: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled.
        repeats: How often each component is timed, in turn with the others.
        fused: Fuse the models with methods first, as they would be deployed.
        output: Write the result as JSON, for example results/profile.json.
        figure: Draw stacked bars as PNG or SVG.
    """
    if not models:
        raise ValueError("give at least one model, by name or as a checkpoint")
    named = side_by_side(models, methods, checkpoint, arguments, fused)
    found = measure(named, device=device, batch=batch, dtype=dtype, modes=modes, repeats=repeats)
    found.print()
    if output is not None:
        console().print(f"wrote {found.save(output)}")
    if figure is not None:
        console().print(f"wrote {latency_breakdown([asdict(row) for row in found.rows]).save(figure)}")
