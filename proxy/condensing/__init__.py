"""What one request needs and how it gets it: policy, requirement, condensation, retries, preparation."""
