"""Full models: built without memory, given new classes, fused, in half precision, counted."""
