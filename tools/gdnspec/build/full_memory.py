"""Memory that ran out: how it is recognised, and what a verdict then says. Every child loads it: no imports."""


def out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out. torch has several ways to say it, and is not imported here."""
    return isinstance(error, MemoryError) or any(
        word in f"{type(error).__name__}: {error}"
        for word in ("OutOfMemoryError", "can't allocate memory", "CUDA out of memory", "CUDA error: out of memory")
    )


def full(who: str, error: BaseException) -> str:
    """The message of a verdict where memory ran out for `who`: the judge or the kernel."""
    return f"out of memory in the {who}: {(str(error).splitlines() or ['no details'])[0]}"
