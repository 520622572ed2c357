"""The files of the dashboard: one page, its modules and styles, and uPlot (see vendor/NOTICE)."""
