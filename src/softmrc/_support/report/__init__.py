"""Pages that people keep: one look, one kind of plot, one file each; for simulator, demo, plans and assessments."""
