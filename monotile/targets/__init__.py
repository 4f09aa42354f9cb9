"""Hardware: figures, capabilities, and for each target its emitter, build, launch and device headers."""
