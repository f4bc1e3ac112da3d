"""The order of the tests, and what none may leave behind."""

import signal
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: at the end a worker would have nothing to do beside the other's last file."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def same_signal_handlers() -> Iterator[None]:
    """What calls our functions keeps its own handlers of signals: they act in all that it runs or forks afterwards."""
    numbers = signal.valid_signals()
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    assert {number: signal.getsignal(number) for number in numbers} == before
