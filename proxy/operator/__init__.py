"""What operators see: pages, plots, and the API of the administration."""
