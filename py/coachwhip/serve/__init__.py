"""The endpoint: HTTP in OpenAI's manner in front of an engine in a process of its own."""
