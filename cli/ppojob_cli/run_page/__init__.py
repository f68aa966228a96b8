"""Run pages: one or several runs as a self-contained HTML file (ADR 45)."""
