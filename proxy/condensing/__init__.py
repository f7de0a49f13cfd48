"""Condensing for one request: policy, requirement, condensation, retries, preparation."""
