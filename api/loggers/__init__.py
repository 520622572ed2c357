"""Step records for experiment loggers: one record a step, and the files and runs it goes to."""
