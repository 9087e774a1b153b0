"""The laboratory: studies, suites and kernel benches that the numbers in results/ come from. Not part of the wheel."""
