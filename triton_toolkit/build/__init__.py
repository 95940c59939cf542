"""``tt build``: from the spec to a model repository that is proven, and rebuilt only where it changed."""
