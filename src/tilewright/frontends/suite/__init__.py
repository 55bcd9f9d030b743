"""`tilewright suite`: the command, the program of one task, what is shown meanwhile, and the report."""
