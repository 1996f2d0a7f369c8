"""A shared GPU box: bundles come in over HTTP, wait in a queue, and are judged one to a GPU, each in a process."""
