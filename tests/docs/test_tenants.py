"""The recipe of docs/frameworks.rst for tenants, in a project of Django: async, threads, transactions."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kombu_redisdelay import Messages, Selection
from tests.docs.page import DOCS, blocks
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

ROOT = Path(__file__).parents[2]

_SETTINGS = """
SECRET_KEY = "secret"
ALLOWED_HOSTS = ["testserver"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
MIDDLEWARE = []
"""

_TASKS = """
from concurrent.futures import ThreadPoolExecutor

from celery import shared_task

from shop.tenants import acting_for

@shared_task
def note(label):
    pass

@shared_task
def parent(label):
    note.apply_async([label], queue="children")

@shared_task(bind=True)
def threaded(self, label):
    tenant = (self.request.headers or {}).get("x-key")

    def publish():
        with acting_for(tenant):
            note.apply_async([label], queue="children")

    with ThreadPoolExecutor() as pool:
        pool.submit(publish).result()
"""

_URLS = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpResponse
from django.urls import path

from shop.tasks import note

def sync(request, label):
    note.delay(label)
    return HttpResponse()

async def asynchronous(request, label):
    await asyncio.sleep(0.1)
    await sync_to_async(note.delay)(label)
    await asyncio.to_thread(note.delay, label + " to_thread")
    return HttpResponse()

def thread(request, label):
    with ThreadPoolExecutor() as pool:
        pool.submit(note.delay, label + " without").result()
        pool.submit(copy_context().run, note.delay, label + " with").result()
    return HttpResponse()

def atomic(request, label):
    with transaction.atomic():
        note.delay_on_commit(label)
        transaction.on_commit(lambda: note.delay(label + " function"))
    return HttpResponse()

urlpatterns = [
    path(f"{view.__name__}/<label>", view) for view in (sync, asynchronous, thread, atomic)
]
"""

_REQUESTS = """
import asyncio
import django
django.setup()

from django.db import transaction
from django.test import AsyncClient, Client

from shop.tasks import note, parent, threaded
from shop.tenants import acting_for, current

def ask(path, tenant):
    assert Client().get(path, headers={"X-Tenant": tenant}).status_code == 200
    assert current.get() is None

async def ask_all():
    asked = [
        AsyncClient().get(f"/{view}/{view} {n}", headers={"X-Tenant": f"tenant-{n}"})
        for n in range(3) for view in ("asynchronous", "sync")
    ]
    assert {response.status_code for response in await asyncio.gather(*asked)} == {200}

asyncio.run(ask_all())
for view in ("sync", "asynchronous", "thread", "atomic"):
    ask(f"/{view}/{view} 7", "tenant-7")
Client().get("/sync/nobody")
with transaction.atomic():
    for n in (4, 5):
        with acting_for(f"tenant-{n}"):
            note.delay_on_commit(f"committed {n}")
            note.apply_async_on_commit([f"by hand {n}"], headers={"x-key": "other"})
    note.delay_on_commit("committed nobody")
with acting_for("tenant-7"):
    parent.apply_async(["child"], queue="parents")
    threaded.apply_async(["of a thread"], queue="parents")
threaded.apply_async(["of a thread, nobody"], queue="parents")
with acting_for(42):
    note.delay("number")
    note.delay_on_commit("number committed")
"""


@pytest.fixture
def project(tmp_path: Path, server: RedisServer) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    files = {"settings.py": _SETTINGS, "tasks.py": _TASKS, "urls.py": _URLS, "__init__.py": ""}
    for block in blocks(DOCS / "frameworks.rst"):
        # The later one of a name counts, as for a reader.
        if block.caption in ("shop/tenants.py", "shop/celery.py", "shop/__init__.py"):
            files[block.caption.removeprefix("shop/")] = block.text
        elif "MIDDLEWARE" in block.text and block.caption.endswith("settings.py"):
            files["settings.py"] += block.text
    files["settings.py"] += f"\nCELERY_BROKER_URL = {server.url()!r}\n"
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return tmp_path


def test_the_key_is_the_tenant_of_the_request(project: Path, server: RedisServer) -> None:
    path = os.pathsep.join([str(project), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "shop.settings"}
    subprocess.run([sys.executable, "-c", _REQUESTS], cwd=project, env=environment, check=True)
    worker = CeleryWorker("shop", pool="threads", queues=["parents"], env=environment, cwd=project)
    with Messages(server.url()) as messages:
        with worker:
            children = Selection(queue="children")
            wait_until(lambda: messages.count(children) == 3, 30, "the tasks have published")
        found = {ast.literal_eval(each.args)[0]: each.key for each in messages.select()}
    several = {f"{view} {n}": f"tenant-{n}" for view in ("sync", "asynchronous") for n in (0, 1, 2, 7)}
    assert found == {
        **several,
        **{f"asynchronous {n} to_thread": f"tenant-{n}" for n in (0, 1, 2, 7)},
        **{"thread 7 without": "", "thread 7 with": "tenant-7"},
        **{"atomic 7": "tenant-7", "atomic 7 function": "tenant-7"},
        **{"nobody": "", "committed nobody": ""},
        **{"committed 4": "tenant-4", "committed 5": "tenant-5", "by hand 4": "other", "by hand 5": "other"},
        **{"child": "tenant-7", "of a thread": "tenant-7", "of a thread, nobody": ""},
        **{"number": "42", "number committed": "42"},
    }
