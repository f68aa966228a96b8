"""A run, or several, as one HTML file that needs nothing but a browser (ADR 45)."""
