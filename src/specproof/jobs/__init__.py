"""A job: a file of prompts in, a file of continuations out."""
