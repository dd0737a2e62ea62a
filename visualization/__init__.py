"""Pages and figures: the dataset browser, the report of a run, what a model looks at."""
