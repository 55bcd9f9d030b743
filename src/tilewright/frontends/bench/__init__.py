"""`tilewright bench`: a kernel file timed beside eager, torch.compile and other kernel files of the same op."""
