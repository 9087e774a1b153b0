"""The methods. A new one is a file here and its line below; everything else finds it by its name."""

__all__: list[str] = []
