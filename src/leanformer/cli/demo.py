"""leanformer demo: the main job from end to end, on handwritten digits that come with the package."""

from pathlib import Path

from .checks import at_least, check_seed, output_folder


def demo(output: Path = Path("demo"), epochs: int = 14, lean_epochs: int = 6, seed: int = 0) -> None:
    """Train a small ViT on handwritten digits, make it lean, and show what it gained and lost; two minutes on a laptop.

    Example: leanformer demo --output demo

    Args:
        output: The folder for checkpoints, table, plan and report.html.
        epochs: Epochs of the backbone.
        lean_epochs: Epochs of distillation.
        seed: Of weights and batches.
    """
    from .demo_work import run

    at_least(1, epochs=epochs, lean_epochs=lean_epochs)
    check_seed(seed)
    output_folder(output)
    run(output, epochs, lean_epochs, seed)
