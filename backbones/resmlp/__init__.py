"""ResMLP: Feedforward networks for image classification (arXiv 2105.03404)."""
