"""A judge for several users: bundles arrive over HTTP, wait in a queue, and are judged, one at a time per GPU."""
