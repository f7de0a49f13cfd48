"""Lessons from upstreams' answers: windows, truncation of prompts, and the forms that they refuse."""
