"""One picture that explains the idea: what a network makes of an image and of its mirror image."""
