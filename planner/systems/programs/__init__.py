"""Programs that compared systems solve: integer ones, buckets and greedy dispatch."""
