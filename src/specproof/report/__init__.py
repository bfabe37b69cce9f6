"""Pages and plots of results. They read results only: what `--json` prints is all they know."""
