"""Ways to write a row program as a kernel. Each is a function from a program and an op line to the text of a file."""
