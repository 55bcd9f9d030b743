"""What a model is told and how its replies are read: template files, rendering, strict parsing. Asks nobody itself."""
