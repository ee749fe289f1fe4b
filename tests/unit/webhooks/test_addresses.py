"""Only public places, unless the server says otherwise."""

from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput
from windlass.webhooks.addresses import WebhookRules, check_name, check_url, is_public

RULES = WebhookRules()


def public(_host: str) -> list[str]:
    return ["93.184.216.34"]


def check(url: str) -> None:
    check_url(url, RULES, resolve=public)


@pytest.mark.parametrize("name", ["a", "1", "web_hook-123.test", "A" * 63])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", " ", "a@b", "-a", "a-", "_a", ".a", "a" * 64, "a\n", "ä"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is invalid"):
        check_name(name)


def test_urls() -> None:
    check("https://example.com:8443/hook?a=b")
    for url, why in [
        ("", "cannot be empty or just whitespace"),
        ("  ", "cannot be empty or just whitespace"),
        ("example.com/hook", "Invalid webhook URL scheme: ''. Allowed schemes are: https"),
        ("http://example.com", "Invalid webhook URL scheme: 'http'"),
        ("https://[example", "Invalid webhook URL"),
        ("https://example.com:99999999", "Invalid webhook URL"),
        ("https:///hook", "must include a hostname"),
        ("https://example.com/a\r\nX: y", "must include a hostname"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            check(url)


def test_who_is_refused_is_told_which_variable_allows_it() -> None:
    with pytest.raises(InvalidInput) as scheme:
        check("http://example.com")
    assert "MLFLOW_WEBHOOK_ALLOWED_SCHEMES" in (scheme.value.hint or "")
    with pytest.raises(InvalidInput) as place:
        check_url("https://example.com", RULES, resolve=lambda _host: ["10.1.2.3"])
    assert "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS" in (place.value.hint or "")


def test_a_name_for_a_place_inside_is_refused() -> None:
    for address in ("127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1"):
        with pytest.raises(InvalidInput, match="must not resolve to a non-public IP address"):
            check_url("https://example.com", RULES, resolve=lambda _host, found=address: [*public(""), found])  # type: ignore[misc]


def test_a_name_that_nobody_knows_is_refused() -> None:
    def unknown(_host: str) -> list[str]:
        raise OSError("no such host")

    with pytest.raises(InvalidInput, match=r"Cannot resolve Webhook URL hostname 'example\.com': no such host"):
        check_url("https://example.com", RULES, resolve=unknown)


def test_the_server_may_allow_all_of_it() -> None:
    environ = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http, https", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}
    rules = WebhookRules.from_environ(environ)
    check_url("http://127.0.0.1:9/hook", rules)
    assert rules == WebhookRules(schemes=("http", "https"), allow_private=True)
    assert WebhookRules.from_environ({}) == RULES
    with pytest.raises(
        InvalidInput, match="MLFLOW_WEBHOOK_REQUEST_TIMEOUT is 'soon'; it takes a whole number from 1 on"
    ):
        WebhookRules.from_environ({"MLFLOW_WEBHOOK_REQUEST_TIMEOUT": "soon"})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),  # 127.0.0.1 by 6to4
        ("64:ff9b::a9fe:a9fe", False),  # 169.254.169.254 by NAT64
        ("fe80::1%eth0", False),
    ],
)
def test_addresses(address: str, expected: bool) -> None:
    assert is_public(address) is expected
