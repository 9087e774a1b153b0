"""What the evaluations of detectors and segmenters tell alike."""

from typing import ClassVar


class DenseResult:
    """Speed, the classes from the worst to the best, and the pictures from the best to the worst."""

    figure: ClassVar[str]
    """What `by_class` holds, as tables write it."""
    images: int
    seconds: float
    classes: tuple[str, ...]
    by_class: tuple[float, ...]
    """A figure of each class; not a number where there is none."""
    qualities: dict[int, float]
    """Of each picture, by its number."""

    @property
    def images_per_second(self) -> float:
        """Speed of the evaluation, reading the pictures included."""
        return self.images / self.seconds

    def per_class(self) -> list[tuple[str, float]]:
        """(class, figure) of every class that has one, the worst first."""
        rows = [(name, value) for name, value in zip(self.classes, self.by_class) if value == value]
        return sorted(rows, key=lambda row: row[1])

    def ranked(self) -> list[int]:
        """Numbers of the pictures, the best answered first."""
        return sorted(self.qualities, key=lambda index: (-self.qualities[index], index))
