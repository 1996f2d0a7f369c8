"""From a solution's sources to something that can be called."""
