"""The probe answers only who knows the secret, and only where it is looked for."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from weir.network.probe import address_towards, listen, probe, probe_loopback, serve

SECRET = b"s" * 32


@contextlib.contextmanager
def served(secret=SECRET):
    """Yield the address of a listener, and a list that says in the end whether a prober came."""
    with listen("127.0.0.1") as listener:
        came: list[bool] = []
        thread = threading.Thread(target=lambda: came.append(serve(listener, 5.0, secret)))
        thread.start()
        yield listener.getsockname()[:2], came
        thread.join()


def test_who_knows_the_secret_measures_the_link(monkeypatch):
    monkeypatch.setattr("weir.network.probe.BULK_SECONDS", 0.01)
    with served() as (address, came):
        link = probe(address, SECRET)
    assert came == [True]
    assert 0 < link.latency_s < 1
    assert link.bandwidth_Bps > 0


def test_strangers_get_nothing_and_keep_nobody_from_measuring(monkeypatch):
    monkeypatch.setattr("weir.network.probe.BULK_SECONDS", 0.01)
    with served() as (address, came):
        with socket.create_connection(address) as stranger:
            stranger.settimeout(5)
            challenge = stranger.recv(64)
            stranger.sendall(b"b" * 64)  # neither an answer, nor what a measurement would send
            assert stranger.recv(64) == b""
        with pytest.raises(ConnectionError):
            probe(address, b"x" * 32)
        with socket.create_connection(address) as replay:
            assert replay.recv(64) != challenge
        probe(address, SECRET)
    assert came == [True]


def test_a_listener_that_does_not_know_the_secret_is_not_measured():
    def impostor(listener):
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"c" * 32)
            peer.recv(64)
            peer.sendall(b"a" * 32)

    with listen("127.0.0.1") as listener:
        threading.Thread(target=impostor, args=(listener,)).start()
        with pytest.raises(ConnectionError, match="does not know the secret"):
            probe(listener.getsockname()[:2], SECRET)


def test_addresses_and_another_process(monkeypatch):
    monkeypatch.setattr("weir.network.probe.BULK_SECONDS", 0.01)
    assert address_towards("127.0.0.1") == "127.0.0.1"
    with pytest.raises(OSError):
        address_towards("no-such-host.invalid")
    assert probe_loopback().bandwidth_Bps > 0
