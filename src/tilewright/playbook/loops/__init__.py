"""One loop-level IR and one scheduler: any graph of supported operations becomes one kernel file of launches."""
