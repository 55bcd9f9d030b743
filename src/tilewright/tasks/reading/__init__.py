"""Ways to give a task: text, files, modules and folders, read without running anything."""
