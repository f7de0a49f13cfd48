"""The proxy's own routes: health, metrics, administration."""
