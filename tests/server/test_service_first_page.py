"""A browser is shown something at once while the report is being made."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from patience import until

pytest.importorskip("fastapi")

from gdnspec.server import app
from gdnspec.server.limits import InProgress
from gdnspec.server.pages import NoReport, Pages


class Slow(Pages):
    """Makes its page when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]  # without a database, it makes nothing itself
        self.may, self.error, self.made = threading.Event(), error, 0

    def of_all(self) -> bytes:
        self.may.wait()
        self.made += 1
        if self.error is not None:
            raise self.error
        return b"<p>the report</p>"


def ask(pages: Pages, accept: str) -> Any:
    state = SimpleNamespace(pages=pages, making=InProgress(4))
    return app.report(SimpleNamespace(headers={"accept": accept}, app=SimpleNamespace(state=state)), "ann")  # type: ignore[arg-type]


def test_a_browser_is_answered_before_the_report_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert app.PATIENCE < 1
    monkeypatch.setattr(app, "PATIENCE", 0.001)
    pages = Slow()
    first, second = ask(pages, "text/html,*/*"), ask(pages, "text/html,*/*")
    assert (first.status_code, first.headers["refresh"]) == (202, "2")
    assert b"being made" in second.body
    pages.may.set()
    until(lambda: ask(pages, "text/html").status_code == 200)
    assert ask(pages, "*/*").body == b"<p>the report</p>"


def test_a_program_waits_for_the_report() -> None:
    pages = Slow()
    threading.Timer(0.01, pages.may.set).start()
    assert ask(pages, "*/*").status_code == 200


def test_a_browser_is_told_why_there_is_no_report() -> None:
    pages = Slow(NoReport("no charts"))
    pages.may.set()
    with pytest.raises(NoReport, match="no charts"):
        until(lambda: pages.of_all_within(10.0))
