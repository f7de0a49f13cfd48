"""`POST /v1/responses`, OpenAI's protocol of items."""
