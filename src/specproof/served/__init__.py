"""Another engine behind HTTP: its prompts asked, its answers written down as a trace."""
