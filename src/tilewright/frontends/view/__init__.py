"""`tilewright view`: runs, kernels and suites as pages for a browser, served on this machine or written as files."""
