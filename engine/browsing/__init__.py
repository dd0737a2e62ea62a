"""A data set to look at: annotations, what the pipeline feeds, statistics, suspected faults."""
