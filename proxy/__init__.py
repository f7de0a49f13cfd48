"""The HTTP shell around the strategies."""
