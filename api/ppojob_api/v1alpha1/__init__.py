"""Version v1alpha1 of the resource."""
