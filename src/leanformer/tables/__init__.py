"""The papers' tables beside ours, one module a system, each with its ROWS."""
