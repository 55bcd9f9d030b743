"""Losses that pick one element of a row by its number, such as cross entropy with class indices."""
