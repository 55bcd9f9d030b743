"""One supervised child process: limits, wire, clean-up. What the child does is its starter's business."""
