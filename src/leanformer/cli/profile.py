"""leanformer profile: where a model's time goes, component by component."""

from dataclasses import asdict
from pathlib import Path

from .checks import DTYPES, at_least, check_picture, one_of, open_device, output_files
from .common import NOTHING, Compared


def profile(
    rows: Compared = NOTHING,
    device: str | None = None,
    batch: int = 1,
    dtype: str | None = None,
    modes: tuple[str, ...] = ("eager",),
    repeats: int = 5,
    output: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Latency by component, by timing each component's modules alone on the inputs they really get.

    --apply A --apply B adds the first model with both methods on it, and each --against one more row.

    Example: leanformer profile deit_small_patch16_224 --apply {tokens} --against {ffn} --figure latency.png

    Args:
        rows: The models, and what is put on the first of them.
        device: cpu or cuda; by default the GPU if there is one.
        batch: Images at a time.
        dtype: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled.
        repeats: How often each component is timed, in turn with the others.
        output: Write the result as JSON, for example results/profile.json.
        figure: Draw stacked bars as PNG or SVG.
    """
    from ..measure import profile as measure
    from ..measure.terminal import console
    from ..visualise import latency_breakdown

    at_least(1, batch=batch, repeats=repeats)
    one_of(DTYPES, dtype=() if dtype is None else (dtype,))
    one_of(("eager", "compiled"), modes=modes)
    output_files(output)
    check_picture(figure)
    place = open_device(device)
    named = rows.open()
    found = measure(named, device=place, batch=batch, dtype=dtype, modes=modes, repeats=repeats)
    found.print()
    if output is not None:
        console().print(f"wrote {found.save(output)}")
    if figure is not None:
        console().print(f"wrote {latency_breakdown([asdict(row) for row in found.rows]).save(figure)}")
