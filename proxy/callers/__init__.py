"""Who calls: tenants, credentials, keys, and what each may spend."""
