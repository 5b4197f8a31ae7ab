"""The offset store's pure heart: versioned nodes, and who may write them."""
