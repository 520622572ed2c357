"""``seqplan check plans|training``: a module for each command."""
