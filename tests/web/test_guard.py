"""Who may look and who may act, and what every response tells the browser."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.testclient import TestClient
from starlette.types import Message

from kombu_redisdelay.web import Viewer as Visitor
from kombu_redisdelay.web import create
from kombu_redisdelay.web.csrf import TOKEN
from kombu_redisdelay.web.guard import MOST
from tests.cli.site import Site
from tests.web.states import scheduled
from tests.web.viewer import Viewer

PATHS = ("/", "/messages", "/message?id=a", "/doctor", "/nothing", "/static/live.js", "/static/nothing")


def is_there(viewer: Viewer) -> bool:
    return viewer.app.state.site.messages.get("a") is not None


def cancelling(viewer: Viewer) -> list[tuple[str, str]]:
    """What the button sends that cancels a message for good."""
    viewer.open("/messages")
    viewer.press("Cancel", ["a"])
    [form] = [form for form in viewer.at.forms if "Cancel" in form.buttons]
    return [*form.fields, form.buttons["Cancel"]]


@pytest.mark.parametrize("path", PATHS)
def test_every_response_makes_the_browser_careful(viewer: Viewer, path: str) -> None:
    headers = viewer.open(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/messages", "/message?id=a", "/queue?name=celery", "/doctor"])
def test_nothing_is_inline_or_from_elsewhere(viewer: Viewer, site: Site, path: str) -> None:
    scheduled(site, "a")
    source = viewer.open(path).source
    assert source.count("<script") == 1
    assert "<style" not in source
    assert " style=" not in source
    assert " on" not in "".join(
        part.partition(">")[0] for part in source.split("<") if "=" in part and " onc" in part
    )
    assert "http://" not in source.replace("http://www.w3.org", "")
    assert "https://" not in source


@pytest.mark.parametrize("path", [*PATHS, "/act"])
def test_a_password_is_asked_for(site: Site, path: str) -> None:
    viewer = Viewer(site.app, users={"ann": "se:cret", "bob": ""})
    for auth in (None, ("ann", "secret"), ("bob", "se:cret"), ("", ""), ("ann", "")):
        response = viewer.client.get(path, auth=auth)
        assert (response.status_code, response.headers["www-authenticate"][:5]) == (401, "Basic")
        assert "content-security-policy" in response.headers
    assert viewer.client.get(path, auth=("ann", "se:cret")).status_code != 401
    viewer.close()


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !", "Basic YQ==", "Bearer YW5uOnNlOmNyZXQ=", "basic é"]
)
def test_what_is_no_password(site: Site, header: str) -> None:
    viewer = Viewer(site.app, users={"ann": "se:cret"})
    assert viewer.client.get("/", headers={"Authorization": header.encode()}).status_code == 401
    viewer.close()


def test_an_orchestrator_needs_no_password(site: Site) -> None:
    viewer = Viewer(site.app, users={"ann": "se:cret"})
    response = viewer.client.get("/healthz")
    assert (response.status_code, response.text) == (200, "ok\n")
    assert viewer.client.get("/queue/healthz").status_code == 401
    viewer.close()


def test_a_form_of_ours(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    page = viewer.send("/act", cancelling(viewer), Origin="http://testserver")
    assert page.status == 200
    assert not is_there(viewer)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://testserver:81"},
    ],
)
def test_a_form_of_another_site(viewer: Viewer, site: Site, headers: Mapping[str, str]) -> None:
    scheduled(site, "a")
    assert viewer.send("/act", cancelling(viewer), **headers).status == 403
    assert is_there(viewer)


def test_a_note_of_another_site(site: Site) -> None:
    """Another site of the same domain may set cookies. It must not put words into our mouth."""
    scheduled(site, "a")
    viewer = Viewer(site.app, users={"ann": "secret"})
    viewer.client.auth = ("ann", "secret")
    viewer.open("/")
    for note in ("Call+0900-1234", f"{'0' * 64}.Call+0900-1234"):
        viewer.client.cookies.set("redisdelay_note", note, domain="testserver.local", path="/")
        assert "0900" not in viewer.open("/").text
    assert "Cancelled 1 message." in viewer.send("/act", cancelling(viewer)).text
    viewer.close()


def test_without_the_cookie(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    pairs = cancelling(viewer)
    viewer.client.cookies.clear()
    assert viewer.send("/act", pairs).status == 403
    assert is_there(viewer)


@pytest.mark.parametrize("token", [None, "", "wrong", "é", "\ud800"])
def test_without_the_token(viewer: Viewer, site: Site, token: str | None) -> None:
    scheduled(site, "a")
    pairs = [pair for pair in cancelling(viewer) if pair[0] != "redisdelay_token"]
    pairs += [] if token is None else [("redisdelay_token", token)]
    assert viewer.send("/act", pairs).status == 403
    assert is_there(viewer)


def test_the_cookie_is_not_for_others(viewer: Viewer) -> None:
    cookie = viewer.client.get("/").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_read_only(site: Site) -> None:
    scheduled(site, "a")
    both = Viewer(site.app)
    pairs = cancelling(both)
    viewer = Viewer(site.app, read_only=True)
    for path in ("/messages", "/message?id=a", "/queue?name=celery"):
        assert viewer.open(path).buttons == set()
    token = viewer.client.cookies["redisdelay_token"]
    pairs = [
        ("redisdelay_token", token) if name == "redisdelay_token" else (name, value) for name, value in pairs
    ]
    page = viewer.send("/act", pairs)
    assert (page.status, "read-only" in page.heading) == (403, True)
    assert is_there(viewer)
    viewer.close()
    both.close()


def test_those_who_may_only_look(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    scheduled(site, "a")
    page = {"users": {"ann": "secret"}, "viewers": {"bob": "secret"}}
    ann, bob = Viewer(site.app, **page), Viewer(site.app, **page)
    ann.client.auth, bob.client.auth = ("ann", "secret"), ("bob", "secret")
    pairs = cancelling(ann)
    for path in ("/messages", "/message?id=a", "/queue?name=celery"):
        assert bob.open(path).buttons == set()
    mine = [(name, bob.client.cookies[TOKEN] if name == TOKEN else value) for name, value in pairs]
    refused = bob.send("/act", mine)
    assert (refused.status, refused.heading) == (403, "You may look at this page, and change nothing.")
    [record] = [record for record in caplog.records if hasattr(record, "audit")]
    assert record.getMessage() == "bob from testclient: cancel a: refused"
    assert (record.audit["user"], record.audit["outcome"], record.audit["failed"]) == ("bob", "refused", True)
    assert bob.send("/stop", [*mine, ("work", "x")]).status == 403
    assert is_there(ann)
    assert ann.send("/act", cancelling(ann)).status == 200
    ann.close()
    bob.close()


def test_somebody_else_says_who_it_is(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scheduled(site, "a")

    def who(request: Request) -> Visitor | Response:
        name = request.headers.get("x-name")
        return Visitor(name, may_act=name == "ann") if name else RedirectResponse("/login")

    viewer = Viewer(site.app, who=who)
    assert viewer.client.get("/messages", follow_redirects=False).headers["location"] == "/login"
    viewer.client.headers["x-name"] = "bob"
    assert viewer.open("/messages").buttons == set()
    viewer.client.headers["x-name"] = "ann"
    assert viewer.send("/act", cancelling(viewer)).status == 200
    assert "ann from testclient: cancel a" in caplog.text
    viewer.close()


def test_users_that_contradict_each_other(site: Site) -> None:
    with pytest.raises(ValueError, match="both have ann"):
        create(site.app, users={"ann": "a"}, viewers={"ann": "b"})
    with pytest.raises(ValueError, match="either who, or users"):
        create(site.app, users={"ann": "a"}, who=lambda request: Visitor("ann"))


def test_an_address_changes_nothing(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    assert viewer.open("/act", **dict(cancelling(viewer))).status == 405
    assert is_there(viewer)


def test_a_form_that_is_too_large(viewer: Viewer) -> None:
    assert viewer.send("/act", [("id", "a" * 1_100_000)]).status == 413
    assert viewer.send("/act", [("id", "a")] * 10_001).status == 413


def test_a_form_from_elsewhere_is_not_read(viewer: Viewer) -> None:
    page = viewer.send("/act", [("id", "a" * 1_100_000)], Origin="http://evil.example")
    assert page.status == 403


def test_the_names_of_the_host(site: Site) -> None:
    viewer = Viewer(site.app, hosts=["localhost"])
    statuses = [
        viewer.client.get("/", headers={"Host": host}).status_code
        for host in ("localhost:9809", "evil.example")
    ]
    assert statuses == [200, 400]
    viewer.close()


def test_guesses(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    viewer = Viewer(site.app, users={"ann": "secret", "bob": "secret"})
    get = viewer.client.get
    statuses = [get("/", auth=("ann", f"guess {number}")).status_code for number in range(MOST + 1)]
    assert statuses == [401] * MOST + [429]
    # From here, she has to wait with the right one, too.
    response = get("/", auth=("ann", "secret"))
    assert (response.status_code, 1 <= int(response.headers["retry-after"]) <= 6) == (429, True)
    assert get("/", auth=("bob", "secret")).status_code == 200
    assert caplog.messages[:MOST] == ["A wrong password for the name ann from testclient"] * MOST
    viewer.close()


def test_guesses_of_somebody_at_the_same_address(site: Site) -> None:
    viewer = Viewer(site.app, users={"ann": "secret", "bob": "secret"})
    get = viewer.client.get
    assert get("/", auth=("ann", "secret")).status_code == 200
    cookie = {"Cookie": f"{TOKEN}={viewer.client.cookies[TOKEN]}"}
    viewer.client.cookies.clear()
    for number in range(MOST):
        assert get("/", auth=("ann", f"guess {number}")).status_code == 401
    assert get("/", auth=("ann", "secret")).status_code == 429
    # She has been here before with this browser.
    assert get("/", auth=("ann", "secret"), headers=cookie).status_code == 200
    # It is for her alone, and has guesses of its own.
    for number in range(MOST):
        assert get("/", auth=("bob", f"guess {number}"), headers=cookie).status_code == 401
        assert get("/", auth=("ann", f"guess {number}"), headers=cookie).status_code == 401
    assert get("/", auth=("bob", "secret"), headers=cookie).status_code == 429
    assert get("/", auth=("ann", "secret"), headers=cookie).status_code == 429
    viewer.close()


def test_an_address_that_is_none(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A proxy may pass on what the client said."""
    page = create(site.app, users={"ann": "secret"})
    with TestClient(page, client=("1.2.3.4\x9b31m fake", 1)) as client:
        assert client.get("/", auth=("ann", "guess")).status_code == 401
    assert caplog.messages == ["A wrong password for the name ann from 1.2.3.4\\x9b31m fake"]


def test_who_has_no_password_yet_does_not_guess(site: Site) -> None:
    viewer = Viewer(site.app, users={"ann": "secret"})
    for _ in range(2 * MOST):
        assert viewer.client.get("/").status_code == 401
    assert viewer.client.get("/", auth=("ann", "secret")).status_code == 200
    viewer.close()


def test_a_token_of_somebody_else(site: Site) -> None:
    users = {"ann": "secret", "bob": "secret"}
    # A page of another process, which signs the same.
    bob = Viewer(site.app, users=users)
    bob.client.auth = ("bob", "secret")
    bob.open("/")
    scheduled(site, "a")
    ann = Viewer(site.app, users=users)
    ann.client.auth = ("ann", "secret")
    pairs = cancelling(ann)
    its = bob.client.cookies["redisdelay_token"]
    with_its = [(name, its if name == "redisdelay_token" else value) for name, value in pairs]
    for cookie in (its, "", "seed", "seed.", f"{its}0"):
        ann.client.cookies.set("redisdelay_token", cookie, domain="testserver.local", path="/")
        assert ann.send("/act", with_its).status == 403
    assert is_there(ann)
    # Her next page gives her one of her own again.
    assert ann.send("/act", cancelling(ann)).status == 200
    assert not is_there(ann)
    ann.close()
    bob.close()


@pytest.mark.parametrize("site_of_origin", ["cross-site", "same-site"])
def test_what_the_browser_says_of_a_form(viewer: Viewer, site: Site, site_of_origin: str) -> None:
    scheduled(site, "a")
    pairs = cancelling(viewer)
    assert viewer.send("/act", pairs, **{"Sec-Fetch-Site": site_of_origin}).status == 403
    assert is_there(viewer)
    assert viewer.send("/act", pairs, **{"Sec-Fetch-Site": "same-origin"}).status == 200


def test_schemes(site: Site) -> None:
    scheduled(site, "a")
    viewer = Viewer(site.app)
    pairs = cancelling(viewer)
    # Somebody between the viewer and this site can forge what has no TLS.
    viewer.client.base_url = viewer.client.base_url.copy_with(scheme="https")
    assert viewer.send("/act", pairs, Origin="http://testserver").status == 403
    assert is_there(viewer)
    # A proxy with TLS need not say so.
    viewer.client.base_url = viewer.client.base_url.copy_with(scheme="http")
    assert viewer.send("/act", pairs, Origin="https://testserver").status == 200
    viewer.close()


def test_no_address_is_made_of_the_header_host(viewer: Viewer) -> None:
    for path in ("/messages/", "/static", "/queue/"):
        response = viewer.client.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
        assert (response.status_code, response.headers.get("location")) == (404, None)


def test_a_form_that_does_not_come(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu_redisdelay.web.form.PATIENCE", 0.05)
    sent: list[Message] = []

    async def receive() -> Message:
        if sent:
            return {"type": "http.disconnect"}
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/act", "query_string": b"", "headers": []}
    asyncio.run(viewer.app({**scope, "scheme": "http", "server": ("testserver", 80)}, receive, send))
    assert sent[0]["status"] == 408


def test_files_are_kept_by_the_browser(viewer: Viewer) -> None:
    assert viewer.client.get("/static/style.css").headers["cache-control"] == "private, max-age=3600"
    assert viewer.client.get("/static/nothing").headers["cache-control"] == "no-store"
    assert viewer.client.get("/").headers["cache-control"] == "no-store"


EMBEDDED = (
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    # Another port of this machine.
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
)


@pytest.mark.parametrize("headers", EMBEDDED)
def test_what_another_site_embeds(viewer: Viewer, site: Site, headers: Mapping[str, str]) -> None:
    for path in PATHS:
        assert viewer.client.get(path, headers=headers).status_code == 403
    assert viewer.client.get("/healthz", headers=headers).status_code == 200


def test_a_link_on_another_site(viewer: Viewer) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert viewer.client.get("/messages", headers=headers).status_code == 200
    headers = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    assert viewer.client.get("/static/live.js", headers=headers).status_code == 200


def test_a_pattern_without_end(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    page = viewer.open("/messages", task="[" * 20_000)
    assert page.status == 400
    assert "a text with wildcards has at most 500 characters" in page.text
    pairs = [*viewer.open("/messages").forms[-1].fields, ("action", "cancel-all"), ("confirmed", "1")]
    pairs = [
        (name, f"state=scheduled&task={'[' * 100_000}" if name == "choice" else value)
        for name, value in pairs
    ]
    assert viewer.send("/act", pairs).status == 400
