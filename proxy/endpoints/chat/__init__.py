"""`POST /v1/chat/completions`, OpenAI's chat protocol, which most servers and clients speak."""
